//! What a run has shown: medians for people, every round for programs.

use std::fmt;

use serde::Serialize;

use crate::raw::Produced;
use crate::relay::Drained;
use crate::usage::machine;

/// One round.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Round {
    /// The load average when the round began: above 1 somebody else works on the machine.
    pub load: f64,
    /// The raw producer.
    pub raw: Produced,
    /// The relay.
    pub relay: Drained,
    /// Transactions that ended in the database during the drain: each statement is one.
    pub transactions: u64,
}

/// All rounds of a run and the medians over them.
#[derive(Debug, Serialize)]
pub struct Report {
    events: u64,
    own_servers: bool,
    cores: usize,
    allocator: &'static str,
    figures: Vec<Figure>,
    rounds: Vec<Round>,
}

/// A figure over all rounds. `None` where it cannot be known.
#[derive(Debug, Serialize)]
struct Figure {
    name: &'static str,
    unit: &'static str,
    median: Option<f64>,
    lowest: Option<f64>,
    highest: Option<f64>,
}

impl Report {
    /// The report on these rounds of `events` events each.
    #[must_use]
    pub fn new(events: u64, own_servers: bool, rounds: Vec<Round>) -> Self {
        let per_event = move |seconds: f64| seconds * 1e6 / events as f64;
        let per_event_of = move |seconds: Option<f64>| seconds.map(per_event);
        let rate = |events: u64, seconds: f64| events as f64 / seconds;
        let of = |round: &Round| round.relay.usage;
        let figure = |name, unit, value: &dyn Fn(&Round) -> Option<f64>| {
            let mut values: Vec<f64> = rounds.iter().filter_map(value).collect();
            values.sort_by(f64::total_cmp);
            let (lowest, highest) = (values.first().copied(), values.last().copied());
            Figure { name, unit, median: median(&values), lowest, highest }
        };
        let raw_rate = |round: &Round| rate(events, round.raw.seconds);
        let relay_rate = |round: &Round| rate(events, round.relay.seconds);
        let database = |round: &Round| Some(of(round).backends_cpu? + of(round).server_cpu?);
        let all =
            |round: &Round| Some(of(round).own_cpu + of(round).broker_cpu? + database(round)?);
        let all_raw = |round: &Round| Some(round.raw.usage.own_cpu + round.raw.usage.broker_cpu?);
        let per_thousand = |count: u64| count as f64 * 1000.0 / events as f64;
        let figures = vec![
            figure("relay", "events/s", &|round| Some(relay_rate(round))),
            figure("raw producer", "events/s", &|round| Some(raw_rate(round))),
            figure("relay ÷ raw producer", "", &|round| Some(relay_rate(round) / raw_rate(round))),
            figure("CPU of raw ÷ CPU of relay, all processes", "", &|round| {
                Some(all_raw(round)? / all(round)?)
            }),
            figure("CPU: relay", "µs/event", &|round| Some(per_event(of(round).own_cpu))),
            figure("CPU: database sessions", "µs/event", &|round| {
                per_event_of(of(round).backends_cpu)
            }),
            figure("CPU: rest of the database server", "µs/event", &|round| {
                per_event_of(of(round).server_cpu)
            }),
            figure("CPU: broker", "µs/event", &|round| per_event_of(of(round).broker_cpu)),
            figure("CPU: raw producer", "µs/event", &|round| {
                Some(per_event(round.raw.usage.own_cpu))
            }),
            figure("CPU: broker under the raw producer", "µs/event", &|round| {
                per_event_of(round.raw.usage.broker_cpu)
            }),
            figure("peak memory of the relay", "MiB", &|round| {
                Some(of(round).peak_bytes as f64 / f64::from(1 << 20))
            }),
            figure("WAL", "bytes/event", &|round| Some(of(round).wal_bytes as f64 / events as f64)),
            figure("statements", "per 1,000 events", &|round| {
                Some(per_thousand(round.transactions))
            }),
            figure("… claims", "per 1,000 events", &|round| {
                Some(per_thousand(round.relay.calls.claims))
            }),
            figure("… settles", "per 1,000 events", &|round| {
                Some(per_thousand(round.relay.calls.settles))
            }),
            figure("a claim was out", "of the time", &|round| {
                Some(round.relay.calls.claiming / round.relay.seconds)
            }),
            figure("a settle was out", "of the time", &|round| {
                Some(round.relay.calls.settling / round.relay.seconds)
            }),
            figure("… probes and upkeep", "in all", &|round| {
                Some((round.relay.calls.probes + round.relay.calls.upkeep) as f64)
            }),
            figure("positions that claims exclude", "per event", &|round| {
                Some(round.relay.calls.excluded as f64 / events as f64)
            }),
            figure("allocations of the Rust side", "per event", &|round| {
                Some(round.relay.allocations? as f64 / events as f64)
            }),
            figure("start-up, not in the rate", "s", &|round| Some(round.relay.startup_seconds)),
            figure("load average before the round", "", &|round| Some(round.load)),
        ];
        let allocator = if cfg!(feature = "count-allocations") {
            "system, counting (times mean nothing)"
        } else {
            "jemalloc on both sides"
        };
        Self { events, own_servers, cores: machine().1, allocator, figures, rounds }
    }
}

fn median(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    Some(if sorted.len() % 2 == 1 { upper } else { f64::midpoint(sorted[middle - 1], upper) })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { events, cores, allocator, rounds, .. } = self;
        let servers = if self.own_servers { "own servers" } else { "shared servers" };
        let rounds = rounds.len();
        writeln!(
            f,
            "{events} events, PostgreSQL to Kafka; {rounds} rounds, {servers}, {cores} cores, {allocator}"
        )?;
        writeln!(f, "{:<42} {:>12}   {:<24} unit", "", "median", "range")?;
        for figure in &self.figures {
            let Figure { name, unit, .. } = figure;
            let (Some(median), Some(lowest), Some(highest)) =
                (figure.median, figure.lowest, figure.highest)
            else {
                writeln!(f, "{name:<42} {:>12}", "unknown")?;
                continue;
            };
            let range = format!("{} … {}", short(lowest), short(highest));
            writeln!(f, "{name:<42} {:>12}   {range:<24} {unit}", short(median))?;
        }
        Ok(())
    }
}

/// Three digits that matter.
fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_two_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[1.0, 2.0, 9.0]), Some(2.0));
        assert_eq!(median(&[1.0, 2.0, 4.0, 9.0]), Some(3.0));
    }

    #[test]
    fn a_figure_shows_three_digits() {
        assert_eq!(
            [123_456.7, 12.345, 1.234, 0.256_78].map(short),
            ["123457", "12.3", "1.23", "0.257"]
        );
    }
}
