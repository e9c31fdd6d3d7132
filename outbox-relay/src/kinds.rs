//! Which stores and publishers a configuration file can name, and how each is made.

#[cfg(feature = "kafka")]
pub(crate) mod kafka;
#[cfg(feature = "mysql")]
pub(crate) mod mysql;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "rabbitmq")]
pub(crate) mod rabbitmq;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
#[cfg(feature = "sqs")]
pub(crate) mod sqs;
mod stdout;

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use outbox::{Publisher, Store};

use crate::config::{ConfigError, PipelineConfig, Settings};

/// Why an adapter cannot be made. Its text, and those of its sources, are shown: no secret may be in them.
pub type AdapterError = Box<dyn Error + Send + Sync>;

type Factory<T> =
    Arc<dyn Fn(Settings) -> BoxFuture<'static, Result<Arc<T>, AdapterError>> + Send + Sync>;

/// A daemon: the kinds of sources and publishers that its configuration file may name.
#[derive(Clone)]
pub struct Daemon {
    stores: BTreeMap<String, Factory<dyn Store>>,
    publishers: BTreeMap<String, Factory<dyn Publisher>>,
}

/// What a pipeline connects.
pub(crate) struct Ends {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) publisher: Arc<dyn Publisher>,
}

impl Default for Daemon {
    fn default() -> Self {
        Self::new()
    }
}

impl Daemon {
    /// A daemon with the kinds that this crate was built with: `postgres`, `mysql`, `sqlite`; `kafka`, `rabbitmq`, `sqs`, each by
    /// the feature of its name, and `stdout`.
    #[must_use]
    pub fn new() -> Self {
        let daemon = Self { stores: BTreeMap::new(), publishers: BTreeMap::new() };
        #[cfg(feature = "postgres")]
        let daemon = daemon.register_store("postgres", postgres::store);
        #[cfg(feature = "mysql")]
        let daemon = daemon.register_store("mysql", mysql::store);
        #[cfg(feature = "sqlite")]
        let daemon = daemon.register_store("sqlite", sqlite::store);
        #[cfg(feature = "kafka")]
        let daemon = daemon.register_publisher("kafka", kafka::publisher);
        #[cfg(feature = "rabbitmq")]
        let daemon = daemon.register_publisher("rabbitmq", rabbitmq::publisher);
        #[cfg(feature = "sqs")]
        let daemon = daemon.register_publisher("sqs", sqs::publisher);
        daemon.register_publisher("stdout", stdout::publisher)
    }

    /// With a kind of source, in place of one of the same name. The factory is called within a tokio runtime, once for each start
    /// of a pipeline and for each check of a file. It connects to nothing: whatever fails later than that is waited out,
    /// while what the factory refuses is a mistake in the file.
    #[must_use]
    pub fn register_store<F, Made>(mut self, kind: impl Into<String>, factory: F) -> Self
    where
        F: Fn(Settings) -> Made + Send + Sync + 'static,
        Made: Future<Output = Result<Arc<dyn Store>, AdapterError>> + Send + 'static,
    {
        self.stores.insert(kind.into(), Arc::new(move |settings| Box::pin(factory(settings))));
        self
    }

    /// With a kind of publisher; as [`register_store`](Self::register_store).
    #[must_use]
    pub fn register_publisher<F, Made>(mut self, kind: impl Into<String>, factory: F) -> Self
    where
        F: Fn(Settings) -> Made + Send + Sync + 'static,
        Made: Future<Output = Result<Arc<dyn Publisher>, AdapterError>> + Send + 'static,
    {
        self.publishers.insert(kind.into(), Arc::new(move |settings| Box::pin(factory(settings))));
        self
    }

    /// Makes both ends of a pipeline.
    pub(crate) async fn ends(&self, pipeline: &PipelineConfig) -> Result<Ends, ConfigError> {
        Ok(Ends {
            store: make(&self.stores, &pipeline.source).await?,
            publisher: make(&self.publishers, &pipeline.publisher).await?,
        })
    }
}

async fn make<T: ?Sized>(
    factories: &BTreeMap<String, Factory<T>>,
    settings: &Settings,
) -> Result<Arc<T>, ConfigError> {
    let kind = settings.kind();
    let Some(factory) = factories.get(kind) else {
        let known: Vec<&str> = factories.keys().map(String::as_str).collect();
        return Err(settings.wrong(format!("there is no kind {kind}, but {}", known.join(", "))));
    };
    let made = AssertUnwindSafe(async { factory(settings.clone()).await }).catch_unwind().await;
    let made = made.unwrap_or_else(|_| Err("its factory panicked; its message is above".into()));
    made.map_err(|error| match error.downcast::<ConfigError>() {
        Ok(error) => *error,
        Err(error) => settings.wrong(chain(&*error)),
    })
}

/// An error with its sources.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

impl fmt::Debug for Daemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Daemon")
            .field("stores", &self.stores.keys())
            .field("publishers", &self.publishers.keys())
            .finish()
    }
}

/// The settings of an adapter as they stand in the file: the keys before the semicolon must be there, each of the others is a
/// field of the adapter's configuration and has that field's default.
#[allow(unused_macros, reason = "a daemon may be built without any of these adapters")]
macro_rules! settings {
    ($name:ident of $config:ty: $($required:ident: $text:ty),*; $($field:ident: $value:ty),* $(,)?) => {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $name {
            $($required: $text,)*
            $($field: Option<$value>,)*
        }

        impl $name {
            /// Sets what the file gives.
            fn fill(self, config: &mut $config) {
                $(if let Some(value) = self.$field {
                    config.$field = value.into();
                })*
            }
        }
    };
}

/// The choices of an adapter's setting under their names in the file.
#[allow(unused_macros, reason = "as above")]
macro_rules! choices {
    ($name:ident of $target:ty: $($choice:ident),+) => {
        #[derive(Clone, Copy, serde::Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub(crate) enum $name {
            $($choice,)+
        }

        impl From<$name> for $target {
            fn from(choice: $name) -> Self {
                match choice {
                    $($name::$choice => Self::$choice,)+
                }
            }
        }
    };
}

#[allow(unused_imports, reason = "as above")]
use {choices, settings};
