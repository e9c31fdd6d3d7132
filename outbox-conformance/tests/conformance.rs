//! The memory backend keeps every contract, in each of the modes that a store may declare.

mod memory;

use std::sync::Arc;
use std::time::Duration;

use memory::{Memory, MemoryBroker};
use outbox_core::memory::{MemoryPublisher, MemoryStore};
use outbox_core::{Batch, Capabilities, KeyOrder, Publisher, Watermark, async_trait};

mod full {
    use super::*;

    async fn harness() -> Memory {
        Memory::new(MemoryStore::new())
    }

    outbox_conformance::store_conformance!(harness);
    outbox_conformance::administration_conformance!(harness);
}

mod one_lane_with_leases {
    use super::*;

    async fn harness() -> Memory {
        let capabilities = Capabilities::default().with_leases(true).with_savepoints(true);
        Memory::new(MemoryStore::with_capabilities(1, capabilities))
    }

    outbox_conformance::store_conformance!(harness);
}

mod single_owner {
    use super::*;

    async fn harness() -> Memory {
        Memory::new(MemoryStore::with_capabilities(1, Capabilities::default()))
    }

    outbox_conformance::store_conformance!(harness);
}

mod commit_order {
    use super::*;

    async fn harness() -> Memory {
        let capabilities = Capabilities::default()
            .with_leases(true)
            .with_scheduled(false)
            .with_watermark(Watermark::CommitOrder);
        Memory::new(MemoryStore::with_capabilities(3, capabilities))
    }

    outbox_conformance::store_conformance!(harness);
    outbox_conformance::administration_conformance!(harness);
}

mod inbox {
    use super::*;

    async fn harness() -> Memory {
        Memory::new(MemoryStore::new())
    }

    outbox_conformance::inbox_conformance!(harness);
}

mod prefix_publisher {
    use super::*;

    async fn harness() -> MemoryBroker {
        MemoryBroker::new(MemoryPublisher::new())
    }

    outbox_conformance::publisher_conformance!(harness);
}

mod unordered_publisher {
    use super::*;

    async fn harness() -> MemoryBroker {
        MemoryBroker::new(MemoryPublisher::with_key_order(KeyOrder::Unordered))
    }

    outbox_conformance::publisher_conformance!(harness);
}

mod publisher_with_a_deadline {
    use super::*;

    const DEADLINE: Duration = Duration::from_secs(2);

    #[derive(Debug)]
    struct Impatient(MemoryPublisher);

    #[async_trait]
    impl Publisher for Impatient {
        async fn publish(&self, batch: Batch) {
            let _ = tokio::time::timeout(DEADLINE, self.0.publish(batch)).await;
        }

        async fn abandon(&self) {
            self.0.abandon().await;
        }
    }

    async fn harness() -> MemoryBroker {
        let broker = MemoryPublisher::new();
        let publisher = Impatient(broker.clone());
        MemoryBroker::wrapped(broker, Arc::new(publisher)).with_deadline(DEADLINE)
    }

    outbox_conformance::publisher_conformance!(harness);
}
