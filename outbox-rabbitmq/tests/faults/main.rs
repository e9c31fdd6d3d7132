//! Faults of a broker of these tests' own: one of RabbitMQ 3 and one of RabbitMQ 4.

#![allow(clippy::unwrap_used)] // A test.

#[path = "../common/mod.rs"]
mod common;
mod crash;
mod pressure;
mod refusals;
mod relay;
mod tls;

use std::time::{Duration, Instant};

use common::LIMIT;
use outbox_core::Publisher;
use outbox_rabbitmq::RabbitMqPublisher;
use tokio::sync::{Mutex, MutexGuard};
use tokio::task::block_in_place;
use xtask::services::{RabbitMq, RabbitMqVersion};

/// The broker refuses larger messages; the publisher's own limit is higher.
const MAX_MESSAGE_SIZE: &str = "1000000";

/// The one broker of each version: tests take turns.
static BROKERS: [Mutex<Option<RabbitMq>>; 2] = [const { Mutex::const_new(None) }; 2];

/// A broker that nobody else uses meanwhile.
struct Turn(MutexGuard<'static, Option<RabbitMq>>);

async fn turn(version: RabbitMqVersion) -> Turn {
    let mut broker = BROKERS[usize::from(version == RabbitMqVersion::V4)].lock().await;
    block_in_place(|| {
        let settings = [("max_message_size", MAX_MESSAGE_SIZE)];
        broker.get_or_insert_with(|| RabbitMq::start_with(version, &settings));
    });
    Turn(broker)
}

impl std::ops::Deref for Turn {
    type Target = RabbitMq;

    fn deref(&self) -> &RabbitMq {
        self.0.as_ref().unwrap()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // A test that failed may have left it in any state; the next one starts a new broker.
        if std::thread::panicking() {
            *self.0 = None;
        }
    }
}

/// Makes tests of these functions, each on both versions.
macro_rules! on_both {
    ($($test:ident,)*) => {
        mod rabbitmq_3 {
            $crate::on_both! { V3: $($test,)* }
        }
        mod rabbitmq_4 {
            $crate::on_both! { V4: $($test,)* }
        }
    };
    ($version:ident: $($test:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test($crate::turn(xtask::services::RabbitMqVersion::$version).await).await;
            }
        )*
    };
}
use on_both;

/// Waits until the publisher has confirmed this many messages since it was made.
async fn confirmed(publisher: &RabbitMqPublisher, at_least: f64) {
    let deadline = Instant::now() + LIMIT;
    let count = || {
        let stats = publisher.stats();
        stats.iter().find(|(name, _)| *name == "confirmed_messages").unwrap().1
    };
    while count() < at_least {
        assert!(Instant::now() < deadline, "{:?}", publisher.stats());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
