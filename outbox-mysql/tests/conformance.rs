//! The contracts of store, writer and inbox: on MySQL 9 and on MariaDB 10.11, each with a longtext and a longblob payload, and again
//! on servers whose settings are all wrong. H020, H032, H161, H188, B021, B028, B225, B226
#![allow(clippy::unwrap_used, reason = "also in the harness")]

mod common;

use common::{Harness, MARIADB, MYSQL, hostile_mariadb, hostile_mysql, shared};
use outbox_mysql::{Keep, PayloadType};

macro_rules! conformance {
    ($module:ident, $server:expr, $payload:expr) => {
        mod $module {
            use super::*;

            async fn harness() -> Harness {
                Harness::new(&$server, $payload).await
            }

            outbox_conformance::store_conformance!(harness);
        }
    };
}

conformance!(mysql_longtext, shared(MYSQL), PayloadType::LongText);
conformance!(mysql_longblob, shared(MYSQL), PayloadType::LongBlob);
conformance!(mariadb_longtext, shared(MARIADB), PayloadType::LongText);
conformance!(mariadb_longblob, shared(MARIADB), PayloadType::LongBlob);
conformance!(hostile_mysql_longtext, hostile_mysql(), PayloadType::LongText);
conformance!(hostile_mariadb_longblob, hostile_mariadb(), PayloadType::LongBlob);

macro_rules! administration_conformance {
    ($module:ident, $server:expr) => {
        mod $module {
            use super::*;

            async fn harness() -> Harness {
                Harness::keeping(&$server, PayloadType::LongText, Keep::Archive).await
            }

            outbox_conformance::administration_conformance!(harness);
        }
    };
}

administration_conformance!(mysql_administration, shared(MYSQL));
administration_conformance!(mariadb_administration, shared(MARIADB));
administration_conformance!(hostile_mysql_administration, hostile_mysql());
administration_conformance!(hostile_mariadb_administration, hostile_mariadb());

macro_rules! inbox_conformance {
    ($module:ident, $server:expr) => {
        mod $module {
            use super::*;

            async fn harness() -> Harness {
                Harness::new(&$server, PayloadType::LongText).await
            }

            outbox_conformance::inbox_conformance!(harness);
        }
    };
}

inbox_conformance!(mysql_inbox, shared(MYSQL));
inbox_conformance!(mariadb_inbox, shared(MARIADB));
inbox_conformance!(hostile_mysql_inbox, hostile_mysql());
