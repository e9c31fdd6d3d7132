//! The memory backend keeps every contract, in each of the modes that a store may declare.

mod memory;

use memory::Memory;
use outbox_core::memory::MemoryStore;
use outbox_core::{Capabilities, Watermark};

mod full {
    use super::*;

    async fn harness() -> Memory {
        Memory::new(MemoryStore::new())
    }

    outbox_conformance::store_conformance!(harness);
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
}

mod inbox {
    use super::*;

    async fn harness() -> Memory {
        Memory::new(MemoryStore::new())
    }

    outbox_conformance::inbox_conformance!(harness);
}
