//! What the rules share.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

/// How long one rule may take: a rule that hangs fails, and says so.
const RULE_TIMEOUT: Duration = Duration::from_secs(120);

/// How long a rule waits for something that has to happen "soon".
pub(crate) const SOON: Duration = Duration::from_secs(15);

/// Runs one rule on a runtime of its own.
///
/// # Panics
///
/// When the rule is broken, or takes longer than two minutes.
pub fn run(rule: &str, test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("a runtime can be built");
    let ended = runtime.block_on(async { tokio::time::timeout(RULE_TIMEOUT, test).await.is_ok() });
    assert!(ended, "the rule {rule} did not end within {RULE_TIMEOUT:?}");
}

/// Says that a rule does not apply.
pub(crate) fn falls_away(rule: &str, why: &str) {
    println!("the rule {rule} falls away: {why}");
}

/// Tries until `attempt` gives something; for what happens soon, but not at once.
pub(crate) async fn eventually<T, F>(what: &str, mut attempt: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let start = Instant::now();
    loop {
        if let Some(found) = attempt().await {
            return found;
        }
        assert!(start.elapsed() < SOON, "{what}: not within {SOON:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
