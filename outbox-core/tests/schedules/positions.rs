//! Schedules of positions that were given by hand and not drawn.

use outbox_core::memory::FaultRule;
use outbox_core::{EventId, EventRow, Position};

use super::*;

const ALL: [Watermark; 3] = [Watermark::None, Watermark::Writers, Watermark::CommitOrder];

impl Stage {
    /// Commits an event of an aggregate of its own at this position.
    fn insert_at(&self, position: Position, name: &str) {
        let mut row = EventRow::new(0, 0, EventId::generate());
        row.aggregate_type = "order";
        row.aggregate_id = Some(name);
        row.event_type = name;
        self.table.insert_raw_at(position, &row);
    }
}

#[tokio::test(start_paused = true)]
async fn a_row_at_a_position_below_one_is_delivered() {
    for watermark in ALL {
        let mut stage = Stage::with_watermark(2, watermark);
        stage.timing.sweep = Duration::from_secs(5);
        for position in [0, -7, Position::MIN + 1] {
            stage.insert_at(position, "early");
        }
        stage
            .run(async {
                stage.until_settled().await;
                stage.write("a", &["drawn"]).await;
                stage.until_settled().await;
                // Below what is covered by now.
                for position in [0, -7, Position::MIN + 1] {
                    stage.insert_at(position, "late");
                }
                stage.table.wait_until_nothing_pending(Duration::from_secs(60)).await;
            })
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_row_at_the_highest_position_is_delivered() {
    for watermark in ALL {
        let mut stage = Stage::with_watermark(2, watermark);
        stage.timing.sweep = Duration::from_secs(5);
        stage.broker.script(FaultRule::on_type("last", refuse(FailureClass::Transient)).times(2));
        stage.insert_at(Position::MAX, "last");
        stage
            .run(async {
                stage.until_settled().await;
                stage.insert_at(Position::MAX, "last");
                stage.table.wait_until_nothing_pending(Duration::from_secs(60)).await;
            })
            .await;
    }
}
