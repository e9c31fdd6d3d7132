//! How long delivered events stay in the archive.

use std::time::Duration;

use crate::StoreError;

/// The time that one partition of an archive covers. All begin and end at midnight UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Period {
    /// One day.
    #[default]
    Day,
    /// From Monday to Sunday.
    Week,
    /// A calendar month.
    Month,
}

impl Period {
    /// The period as SQL names it.
    #[must_use]
    pub const fn as_sql(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
        }
    }
}

/// How long delivered events are kept, and how their archive is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retention {
    /// How long a delivered event is kept at least. It goes with its partition, so up to a [`period`](Self::period) later.
    pub keep: Duration,
    /// What one partition covers. Default: a day.
    pub period: Period,
    /// How many periods after the present one have their partition already. Default 3: so long may the upkeep fail.
    pub ahead: u32,
}

impl Retention {
    /// The longest that events are kept: a hundred years.
    pub const MAX_KEEP: Duration = Duration::from_secs(100 * 366 * 86_400);
    /// The most partitions ahead.
    pub const MAX_AHEAD: u32 = 100;

    /// Delivered events are kept for so long, in partitions of a day.
    #[must_use]
    pub const fn new(keep: Duration) -> Self {
        Self { keep, period: Period::Day, ahead: 3 }
    }

    /// Sets what one partition covers.
    #[must_use]
    pub const fn with_period(mut self, period: Period) -> Self {
        self.period = period;
        self
    }

    /// Sets how many periods after the present one have their partition already.
    #[must_use]
    pub const fn with_ahead(mut self, ahead: u32) -> Self {
        self.ahead = ahead;
        self
    }

    /// For those who write an archive.
    ///
    /// # Errors
    ///
    /// `Misconfigured`: names the setting that is out of range.
    pub fn validate(&self) -> Result<(), StoreError> {
        if self.keep < Duration::from_secs(1) || self.keep > Self::MAX_KEEP {
            return Err(StoreError::misconfigured(format!(
                "keep is {:?}: it must be 1 s to 100 years",
                self.keep
            )));
        }
        if self.ahead == 0 || self.ahead > Self::MAX_AHEAD {
            return Err(StoreError::misconfigured(format!(
                "ahead is {}: it must be 1 to {}",
                self.ahead,
                Self::MAX_AHEAD
            )));
        }
        Ok(())
    }
}

/// What one upkeep of an archive has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Upkeep {
    /// The partitions that were made, by name.
    pub made: Vec<String>,
    /// The partitions that were dropped with all their rows, by name.
    pub dropped: Vec<String>,
    /// The rows that were deleted one by one, since they were in no partition of a period.
    pub deleted: u64,
    /// Whether somebody else had the lock, and this did nothing or not all.
    pub busy: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retention_out_of_range_is_refused_by_its_setting() {
        let days = |days: u64| Retention::new(Duration::from_secs(days * 86_400));
        assert!(days(7).validate().is_ok());
        for (wrong, setting) in [
            (Retention::new(Duration::ZERO), "keep"),
            (days(40_000), "keep"),
            (days(7).with_ahead(0), "ahead"),
            (days(7).with_ahead(101), "ahead"),
        ] {
            let error = wrong.validate().unwrap_err().to_string();
            assert!(error.contains(&format!("{setting} is")), "{error}");
        }
    }
}
