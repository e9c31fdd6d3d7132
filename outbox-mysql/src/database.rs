//! How a statement is run: in a task of its own, with a deadline, on a session that is as the statements expect it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use outbox_core::StoreError;
use sqlx::mysql::{MySqlArguments, MySqlPoolOptions};
use sqlx::pool::PoolConnection;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, MySql, MySqlConnection, MySqlPool};
use tokio::sync::oneshot;

use crate::MySqlConfig;
use crate::error::{connect_error, is_deadlock, spoils_connection, store_error};

/// What a client waits beyond the server's own time limit before it gives the connection up.
const GRACE: Duration = Duration::from_millis(500);
/// What is left to a statement whose caller has given up: most end by then, and their connection stays of use.
const GIVEN_UP: Duration = Duration::from_millis(500);
/// How long to look for the reason when there is no connection.
const REASON: Duration = Duration::from_millis(500);
/// A connection that was idle for longer is tested before it is used.
const TEST_AFTER_IDLE: Duration = Duration::from_secs(1);
/// How often work that lost to another transaction is done again before its caller hears of it.
const TRIES: u32 = 5;

/// A store's connections for one purpose.
///
/// Every statement runs in a task of its own, so that dropping the caller's future cannot leave a half-read connection
/// or an open transaction in the pool. A connection that misses its deadline, or whose caller has gone and that is not
/// done soon, is closed, never handed on.
#[derive(Clone)]
pub(crate) struct Database {
    pool: MySqlPool,
    /// When a connection was last found broken: then those that were idle at the time are suspects.
    broken: Arc<Mutex<Option<Instant>>>,
    /// How often that was: behind a broken connection there may be a server that was restarted.
    breaks: Arc<AtomicU64>,
    deadline: Duration,
    /// The outbox table and where it is, for messages.
    table: Arc<str>,
}

impl Database {
    /// At most so many connections, opened when they are needed.
    pub(crate) fn new(config: &MySqlConfig, connections: u32) -> Self {
        let broken = Arc::new(Mutex::new(None::<Instant>));
        let suspects = Arc::clone(&broken);
        let settings: Arc<str> = settings(config).into();
        let pool = MySqlPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(config.connect_timeout)
            .test_before_acquire(false)
            .after_connect(move |connection, _| {
                let settings = Arc::clone(&settings);
                Box::pin(async move {
                    connection.execute(AssertSqlSafe(settings)).await?;
                    // Needs a right that few have; without it a delete writes the whole event to the binary log again.
                    let _ = connection.execute("set session binlog_row_image = 'minimal'").await;
                    Ok(())
                })
            })
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
            .connect_lazy_with(config.connect.clone().timezone(Some("+00:00".to_owned())));
        Self {
            pool,
            broken,
            breaks: Arc::default(),
            deadline: config.statement_timeout + GRACE,
            table: format!("{} at {}", config.names().live, place(config)).into(),
        }
    }

    /// The outbox table and where it is, for messages.
    pub(crate) fn table(&self) -> &str {
        &self.table
    }

    /// How often a connection was found broken.
    pub(crate) fn breaks(&self) -> u64 {
        self.breaks.load(Ordering::Relaxed)
    }

    /// Runs statements that each commit by themselves. Cancel safe: the connection is clean afterwards, or closed.
    ///
    /// `work` is done again when it was the victim of a deadlock, which undid its last statement.
    pub(crate) async fn run<T, F>(&self, action: &'static str, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> Fn(&'c mut MySqlConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>
            + Send
            + Sync
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
        F: for<'c> Fn(&'c mut MySqlConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>
            + Send
            + Sync
            + 'static,
    {
        self.spawn(action, false, spoiled, work).await
    }

    /// Runs several statements in one transaction. Cancel safe as [`run`](Self::run).
    pub(crate) async fn transaction<T, F>(
        &self,
        action: &'static str,
        work: F,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> Fn(&'c mut MySqlConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>
            + Send
            + Sync
            + 'static,
    {
        self.spawn(action, true, |_| false, work).await
    }

    async fn spawn<T, F>(
        &self,
        action: &'static str,
        in_transaction: bool,
        spoiled: fn(&T) -> bool,
        work: F,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> Fn(&'c mut MySqlConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>
            + Send
            + Sync
            + 'static,
    {
        let (pool, deadline) = (self.pool.clone(), self.deadline);
        let (broken, breaks) = (Arc::clone(&self.broken), Arc::clone(&self.breaks));
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
                done = attempts(&mut connection, in_transaction, &work) => done,
                () = tokio::time::sleep(deadline) => Err(timed_out()),
                () = given_up => Err(timed_out()),
            };
            if result.as_ref().is_err_and(spoils_connection) {
                *broken.lock().expect("no panic under the lock") = Some(Instant::now());
                breaks.fetch_add(1, Ordering::Relaxed);
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
async fn connection(pool: &MySqlPool) -> Result<PoolConnection<MySql>, sqlx::Error> {
    match pool.acquire().await {
        Err(sqlx::Error::PoolTimedOut) if pool.size() < pool.options().get_max_connections() => {
            let options = pool.connect_options();
            match tokio::time::timeout(REASON, MySqlConnection::connect_with(&options)).await {
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
fn give_back(mut connection: PoolConnection<MySql>) {
    tokio::spawn(tokio::time::timeout(GRACE, connection.return_to_pool()));
}

/// Host, port and database.
fn place(config: &MySqlConfig) -> String {
    let (connect, database) = (&config.connect, config.database());
    match connect.get_socket() {
        Some(socket) => format!("{}/{database}", socket.display()),
        None => format!("{}:{}/{database}", connect.get_host(), connect.get_port()),
    }
}

/// A statement whose text is kept prepared.
pub(crate) fn query(sql: &Arc<str>) -> Query<'static, MySql, MySqlArguments> {
    sqlx::query(AssertSqlSafe(Arc::clone(sql)))
}

/// A statement whose text does not come again.
pub(crate) fn query_once(sql: impl Into<String>) -> Query<'static, MySql, MySqlArguments> {
    sqlx::query(AssertSqlSafe(sql.into())).persistent(false)
}

async fn attempts<T, F>(
    connection: &mut MySqlConnection,
    in_transaction: bool,
    work: &F,
) -> Result<T, sqlx::Error>
where
    F: for<'c> Fn(&'c mut MySqlConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>,
{
    let mut tries = 1;
    loop {
        match attempt(connection, in_transaction, work).await {
            Err(error) if is_deadlock(&error) && tries < TRIES => tries += 1,
            result => return result,
        }
    }
}

async fn attempt<T, F>(
    connection: &mut MySqlConnection,
    in_transaction: bool,
    work: &F,
) -> Result<T, sqlx::Error>
where
    F: for<'c> Fn(&'c mut MySqlConnection) -> BoxFuture<'c, Result<T, sqlx::Error>>,
{
    if !in_transaction {
        return work(connection).await;
    }
    let mut transaction = connection.begin().await?;
    match work(&mut transaction).await {
        Ok(value) => {
            transaction.commit().await?;
            Ok(value)
        }
        Err(error) => {
            // Before the next attempt, and before the connection goes back: dropped, it would be rolled back later.
            transaction.rollback().await?;
            Err(error)
        }
    }
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

/// Settings of the relay's sessions, so that nothing depends on those of the server.
///
/// `read committed`: every statement sees what was committed before it, and locks what it changes and no gaps.
/// `group_concat_max_len`: a claim's list of positions must not be cut.
fn settings(config: &MySqlConfig) -> String {
    let lock = config.lock_timeout.as_secs().max(1);
    let statement = config.statement_timeout;
    format!(
        "set session transaction isolation level read committed;
         set session autocommit = 1, session sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION',
             session innodb_lock_wait_timeout = {lock}, session lock_wait_timeout = {lock},
             session group_concat_max_len = 67108864
             /*!80000 , session max_execution_time = {} */ /*M!101100 , session max_statement_time = {} */",
        statement.as_millis(),
        statement.as_secs_f64(),
    )
}
