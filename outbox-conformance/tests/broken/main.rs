//! The rules bite: each backend here is the memory backend with one thing broken, and the rule of that thing must fail.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

#[path = "../memory/mod.rs"]
mod memory;

mod administration;
mod inbox;
mod publisher;
mod sequence;
mod store;
mod writer;

/// For each line a test that the rule fails on the backend made by the expression.
#[macro_export]
macro_rules! bites {
    ($topic:ident, $($name:ident: $rule:ident on $backend:expr;)+) => {
        $(
            #[test]
            #[should_panic]
            fn $name() {
                outbox_conformance::run(stringify!($rule), async {
                    outbox_conformance::$topic::$rule(&$backend).await;
                });
            }
        )+
    };
}
