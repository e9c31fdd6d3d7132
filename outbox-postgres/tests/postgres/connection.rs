//! Connections: TLS, poolers, secrets.

use outbox_core::{Store as _, StoreErrorKind};
use outbox_postgres::{PostgresConfig, PostgresStore};

use crate::common::{LEASE, Outbox, delivered, event, everything, run, sorted, url, worker};

/// The server's certificate is verified against the CA, and a wrong name is refused.
#[tokio::test]
async fn tls_is_verified() {
    let outbox = Outbox::new().await;
    let ca = url("OUTBOX_TEST_POSTGRES_CA");
    let at = |host: &str| {
        let tls = outbox.url.replace("127.0.0.1", host);
        let config =
            PostgresConfig::from_url(&format!("{tls}?sslmode=verify-full&sslrootcert={ca}"));
        PostgresStore::new(&config.unwrap().with_pool_size(2)).unwrap()
    };
    at("localhost").claim(&everything(16)).await.unwrap();
    let used = "select count(*) from pg_stat_ssl s join pg_stat_activity a using (pid)
                 where a.datname = current_database() and s.ssl";
    assert!(outbox.number(used).await > 0);

    let strangers = format!("{}?sslmode=verify-full", outbox.url.replace("127.0.0.1", "localhost"));
    let store = PostgresStore::new(&PostgresConfig::from_url(&strangers).unwrap()).unwrap();
    let error = store.claim(&everything(16)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{error:?}");
}

/// H163, B261: no password in an error or its causes.
#[tokio::test]
async fn a_refused_login_does_not_repeat_the_password() {
    let outbox = Outbox::bare("OUTBOX_TEST_POSTGRES_URL", |config| config).await;
    let role = format!("r{}", uuid::Uuid::new_v4().simple());
    outbox.execute(&format!("create role {role} login password 'right'")).await;
    let wrong = outbox.url.replace("postgres:postgres", &format!("{role}:hunter2"));
    let store = PostgresStore::new(&PostgresConfig::from_url(&wrong).unwrap()).unwrap();
    let error = store.claim(&everything(16)).await.unwrap_err();
    outbox.execute(&format!("drop role {role}")).await;
    let mut text = format!("{error:?} {error} {store:?}");
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        text.push_str(&format!("{error:?} {error}"));
        cause = error.source();
    }
    assert!(!text.contains("hunter2"), "{text}");
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{text}");
}

/// A connection that cannot be had names the place and the reason, and never the password. H163
#[tokio::test]
async fn no_connection_names_place_and_reason() {
    let outbox = Outbox::new().await;
    let database = outbox.url.rsplit('/').next().unwrap();
    let nobody = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().to_string()
    };
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_place = silent.local_addr().unwrap().to_string();
    let server = outbox.url.split(['@', '/']).nth(3).unwrap().to_owned();
    let url =
        |place: &str, database: &str| format!("postgres://postgres:hunter2@{place}/{database}");
    let right = outbox.url.replace(database, "nowhere");
    for (url, place, named) in [
        (
            url(&nobody, "shop"),
            format!("{nobody}/shop"),
            vec!["onnection refused", "host and port"],
        ),
        (
            url("no-such-host.invalid:5432", "shop"),
            "no-such-host.invalid:5432/shop".into(),
            vec!["host and port"],
        ),
        (
            url(&silent_place, "shop"),
            format!("{silent_place}/shop"),
            vec!["does not answer", "host and port"],
        ),
        (url(&server, database), format!("{server}/{database}"), vec!["refuses the role"]),
        (right, format!("{server}/nowhere"), vec!["\"nowhere\" does not exist"]),
    ] {
        let config = PostgresConfig::from_url(&url).unwrap();
        let store =
            PostgresStore::new(&config.with_connect_timeout(std::time::Duration::from_secs(1)));
        let store = store.unwrap();
        let text = chain(&store.claim(&everything(16)).await.unwrap_err());
        assert!(text.contains(&place), "{place}: {text}");
        for named in named {
            assert!(text.contains(named), "{named}: {text}");
        }
        assert!(!text.contains("hunter2"), "{text}");
    }
}

/// A pool without a free connection is not a server that is down.
#[tokio::test]
async fn a_pool_that_is_too_small_is_named() {
    let outbox = Outbox::with(|config| {
        config.with_pool_size(2).with_lock_timeout(LEASE).with_statement_timeout(LEASE)
    })
    .await;
    let store = std::sync::Arc::new(outbox.store());
    let mut operator = outbox.session().await;
    run(&mut operator, "begin; lock table outbox").await;
    let hanging = tokio::spawn({
        let store = store.clone();
        async move { store.claim(&everything(16)).await }
    });
    outbox.wait_for_lock_waiter().await;
    let text = chain(&store.claim(&everything(16)).await.unwrap_err());
    assert!(text.contains("pool_size"), "{text}");
    run(&mut operator, "rollback").await;
    hanging.await.unwrap().unwrap();
}

/// As the relay logs it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// B212, H160: behind a pooler in transaction mode, several workers at once, and no session state is left.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_pooler_is_enough() {
    let outbox = Outbox::bare("OUTBOX_TEST_PGBOUNCER_URL", |config| config.with_pooled(true)).await;
    outbox.schema().migrate().await.unwrap();
    let mut tasks = Vec::new();
    for n in 0..4 {
        let store = outbox.store();
        let lanes: Vec<u16> = (0..16).filter(|lane| lane % 4 == n).collect();
        tasks.push(tokio::spawn(async move {
            let worker = worker(&n.to_string());
            store.join(&worker).await.unwrap();
            for _ in 0..20 {
                store.acquire(&worker, 4).await.unwrap();
                let leases = store.heartbeat(&worker, LEASE).await.unwrap();
                store.claim(&everything(16)).await.unwrap();
                store.probe(0).await.unwrap();
                let verdicts = delivered(&worker, 1, &[]);
                store.settle(&verdicts).await.unwrap();
                store
                    .release(&worker, &leases.lanes.iter().map(|l| l.lane).collect::<Vec<_>>())
                    .await
                    .unwrap();
            }
            store.leave(&worker).await.unwrap();
            lanes.len()
        }));
    }
    for task in tasks {
        assert_eq!(task.await.unwrap(), 4);
    }
    let mut tx = outbox.pool.begin().await.unwrap();
    for setting in ["enable_seqscan", "jit"] {
        let text: String = sqlx::query_scalar(sqlx::AssertSqlSafe(format!("show {setting}")))
            .persistent(false)
            .fetch_one(&mut *tx)
            .await
            .unwrap();
        assert_eq!(text, "on", "{setting} was left behind");
    }
}

/// A server that restarts costs one error, however many connections were idle.
#[tokio::test(flavor = "multi_thread")]
async fn lost_sessions_cost_one_error_at_most() {
    let outbox = Outbox::with(|config| config.with_pool_size(4)).await;
    let store = outbox.store();
    outbox.append(&[event("a", "1")]).await;
    for _ in 0..3 {
        let request = everything(16);
        let (a, b, c, d) = tokio::join!(
            store.claim(&request),
            store.claim(&request),
            store.claim(&request),
            store.claim(&request)
        );
        assert!([a, b, c, d].iter().all(Result::is_ok));
        outbox
            .execute(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity
                  where datname = current_database() and application_name = 'outbox'",
            )
            .await;
        let mut failed = 0;
        for _ in 0..8 {
            if let Err(error) = store.claim(&everything(16)).await {
                assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
                failed += 1;
            }
        }
        assert!(failed <= 1, "{failed} errors");
    }
    assert_eq!(sorted(&store.claim(&everything(16)).await.unwrap()).len(), 1);
}
