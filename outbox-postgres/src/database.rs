//! How a statement is run: in a task of its own, with a deadline, without a trace on the session.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use outbox_core::StoreError;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgArguments, PgConnectOptions, PgPoolOptions};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool, Postgres};
use tokio::sync::oneshot;

use crate::PostgresConfig;
use crate::error::{connect_error, spoils_connection, store_error};

/// What a client waits beyond the server's own time limit before it gives the connection up.
const GRACE: Duration = Duration::from_millis(500);
/// What is left to a statement whose caller has given up: most end by then, and their connection stays of use.
const GIVEN_UP: Duration = Duration::from_millis(500);
/// How long to look for the reason when there is no connection.
const REASON: Duration = Duration::from_millis(500);
/// A connection that was idle for longer is tested before it is used.
const TEST_AFTER_IDLE: Duration = Duration::from_secs(1);

/// A store's connections for one purpose.
///
/// Every statement runs in a task of its own, so that dropping the caller's future cannot leave a half-read connection
/// or an open transaction in the pool. A connection that misses its deadline, or whose caller has gone and that is not
/// done soon, is closed, never handed on; what the server still does for it ends with its own time limit.
#[derive(Clone)]
pub(crate) struct Database {
    pool: PgPool,
    /// When a connection was last found broken: then those that were idle at the time are suspects.
    broken: Arc<Mutex<Option<Instant>>>,
    /// What opens a transaction behind a pooler, with all settings local to it; `None` is a connection of our own.
    begin: Option<Arc<str>>,
    deadline: Duration,
    /// The outbox table and where it is, for messages.
    table: Arc<str>,
}

impl Database {
    /// At most so many connections, opened when they are needed.
    pub(crate) fn new(config: &PostgresConfig, connections: u32) -> Self {
        let broken = Arc::new(Mutex::new(None::<Instant>));
        let suspects = Arc::clone(&broken);
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(config.connect_timeout)
            .test_before_acquire(false)
            .before_acquire(move |connection, meta| {
                let broken = *suspects.lock().expect("no panic under the lock");
                let suspect = broken.is_some_and(|at| at.elapsed() <= meta.idle_for);
                Box::pin(async move {
                    if suspect || meta.idle_for > TEST_AFTER_IDLE {
                        connection.ping().await?;
                    }
                    Ok(true)
                })
            })
            .connect_lazy_with(connect_options(config));
        Self {
            pool,
            broken,
            begin: config.pooled.then(|| begin_local(config).into()),
            deadline: config.statement_timeout + GRACE,
            table: format!("{} at {}", config.names().live, place(&config.connect)).into(),
        }
    }

    /// The outbox table and where it is, for messages.
    pub(crate) fn table(&self) -> &str {
        &self.table
    }

    /// A statement of this store.
    pub(crate) fn query(&self, sql: &Arc<str>) -> Query<'static, Postgres, PgArguments> {
        sqlx::query(AssertSqlSafe(Arc::clone(sql))).persistent(self.begin.is_none())
    }

    /// Runs one statement. Cancel safe: its connection is clean afterwards, or closed.
    pub(crate) async fn run<T, F>(&self, action: &'static str, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>
            + Send
            + 'static,
    {
        self.run_unless(action, |_| false, work).await
    }

    /// Runs one statement, and closes its connection when `spoiled` says that its rows were not read to the end.
    pub(crate) async fn run_unless<T, F>(
        &self,
        action: &'static str,
        spoiled: fn(&T) -> bool,
        work: F,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>
            + Send
            + 'static,
    {
        self.spawn(action, self.begin.clone(), spoiled, work).await
    }

    /// Runs several statements in one transaction. Cancel safe as [`run`](Self::run).
    pub(crate) async fn transaction<T, F>(
        &self,
        action: &'static str,
        work: F,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>
            + Send
            + 'static,
    {
        let begin = self.begin.clone().unwrap_or_else(|| BEGIN.into());
        self.spawn(action, Some(begin), |_| false, work).await
    }

    async fn spawn<T, F>(
        &self,
        action: &'static str,
        begin: Option<Arc<str>>,
        spoiled: fn(&T) -> bool,
        work: F,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>
            + Send
            + 'static,
    {
        let (pool, deadline, broken) = (self.pool.clone(), self.deadline, self.broken.clone());
        let table = Arc::clone(&self.table);
        // Dropped with this future.
        let (_caller, mut gone) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            let mut connection = tokio::select! {
                acquired = connection(&pool) => {
                    acquired.map_err(|error| connect_error(action, &table, error))?
                }
                _ = &mut gone => return Err(store_error(action, &table, timed_out())),
            };
            let given_up = async {
                let _ = gone.await;
                tokio::time::sleep(GIVEN_UP).await;
            };
            let result = tokio::select! {
                done = attempt(&mut connection, begin, spoiled, work) => done,
                () = tokio::time::sleep(deadline) => Err(timed_out()),
                () = given_up => Err(timed_out()),
            };
            if result.as_ref().is_err_and(spoils_connection) {
                *broken.lock().expect("no panic under the lock") = Some(Instant::now());
            }
            if result.as_ref().map_or_else(spoils_connection, spoiled) {
                drop(connection.detach());
            } else {
                give_back(connection);
            }
            result.map_err(|error| store_error(action, &table, error))
        });
        let crashed = |_| Err(store_error(action, &self.table, sqlx::Error::WorkerCrashed));
        task.await.unwrap_or_else(crashed)
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("table", &self.table).finish_non_exhaustive()
    }
}

/// A connection, or why there is none: the pool tries again for as long as it may, and then tells no reason.
async fn connection(pool: &PgPool) -> Result<PoolConnection<Postgres>, sqlx::Error> {
    match pool.acquire().await {
        Err(sqlx::Error::PoolTimedOut) if pool.size() < pool.options().get_max_connections() => {
            let options = pool.connect_options();
            match tokio::time::timeout(REASON, PgConnection::connect_with(&options)).await {
                Ok(Err(reason)) => Err(reason),
                Ok(Ok(_)) => Err(sqlx::Error::PoolTimedOut),
                Err(_) => Err(no_answer()),
            }
        }
        acquired => acquired,
    }
}

/// Puts a connection back. The pool looks first whether it still answers, and without a limit: a link that has just died
/// would take the place in the pool with it, and a single connection for leases has one place.
fn give_back(mut connection: PoolConnection<Postgres>) {
    tokio::spawn(tokio::time::timeout(GRACE, connection.return_to_pool()));
}

/// Host, port and database.
fn place(connect: &PgConnectOptions) -> String {
    let database = connect.get_database().unwrap_or_else(|| connect.get_username());
    match connect.get_socket() {
        Some(socket) => format!("{}/{database}", socket.display()),
        None => format!("{}:{}/{database}", connect.get_host(), connect.get_port()),
    }
}

async fn attempt<T, F>(
    connection: &mut PgConnection,
    begin: Option<Arc<str>>,
    spoiled: fn(&T) -> bool,
    work: F,
) -> Result<T, sqlx::Error>
where
    F: for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>,
{
    let Some(begin) = begin else { return work(connection).await };
    let mut transaction = connection.begin_with(AssertSqlSafe(begin)).await?;
    let value = work(&mut transaction).await?;
    if !spoiled(&value) {
        transaction.commit().await?;
    }
    Ok(value)
}

fn timed_out() -> sqlx::Error {
    io_timed_out("the server did not answer within the statement timeout")
}

fn no_answer() -> sqlx::Error {
    io_timed_out("the server does not answer")
}

fn io_timed_out(reason: &'static str) -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, reason))
}

const BEGIN: &str = "begin isolation level read committed";

/// Settings of the relay's sessions. A plan cached while the table was empty must not become a sequential scan when it
/// is full, and short statements must not be compiled.
fn settings(config: &PostgresConfig) -> [(&'static str, String); 6] {
    let millis = |limit: Duration| limit.as_millis().to_string();
    [
        ("enable_seqscan", "off".to_owned()),
        ("jit", "off".to_owned()),
        ("statement_timeout", millis(config.statement_timeout)),
        ("lock_timeout", millis(config.lock_timeout)),
        ("idle_in_transaction_session_timeout", millis(config.statement_timeout)),
        ("default_transaction_isolation", "read committed".to_owned()),
    ]
}

fn connect_options(config: &PostgresConfig) -> PgConnectOptions {
    let mut connect = config.connect.clone();
    if connect.get_application_name().is_none() {
        connect = connect.application_name("outbox");
    }
    if config.pooled {
        connect.statement_cache_capacity(0).extra_float_digits(None)
    } else {
        connect.options(settings(config))
    }
}

fn begin_local(config: &PostgresConfig) -> String {
    settings(config)
        .iter()
        .filter(|(name, _)| *name != "default_transaction_isolation")
        .fold(BEGIN.to_owned(), |sql, (name, value)| format!("{sql}; set local {name} = {value}"))
}
