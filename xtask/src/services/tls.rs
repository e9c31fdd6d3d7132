//! A private certificate authority and one server certificate for localhost and 127.0.0.1.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{folders, process::run};
use crate::Result;

/// Ten years: the folder is a cache, and a certificate that ends would be a test that ends.
const DAYS: &str = "3650";
/// The subject of the client's certificate.
pub(crate) const CLIENT: &str = "CN=outbox test client";

pub(crate) fn folder() -> PathBuf {
    folders::servers().join("tls")
}

/// The certificate that a client must trust to verify the servers.
pub(crate) fn ca_certificate() -> PathBuf {
    folder().join("ca.crt")
}

/// Makes the certificates once: `ca.crt`, `ca.key`, `server.crt`, `server.key`.
pub(crate) fn create() -> Result<()> {
    if ca_certificate().exists() {
        return Ok(());
    }
    let new = folders::servers().join("tls.new");
    let _ = fs::remove_dir_all(&new);
    folders::create(&new)?;
    authority(&new, "ca")?;
    certificate(
        &new,
        "server",
        &[
            ["-subj", "/CN=localhost"],
            ["-CA", "ca.crt"],
            ["-CAkey", "ca.key"],
            ["-addext", "basicConstraints=critical,CA:FALSE"],
            ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
            ["-addext", "extendedKeyUsage=serverAuth"],
        ]
        .concat(),
    )?;
    for file in ["ca.crt", "server.crt"] {
        fs::set_permissions(new.join(file), fs::Permissions::from_mode(0o644))?;
    }
    fs::rename(&new, folder())?;
    Ok(())
}

/// Key and certificate of the server in one text, for servers that want them so.
pub(crate) fn server_pem() -> Result<String> {
    let read = |file: &str| fs::read_to_string(folder().join(file));
    Ok(read("server.key")? + &read("server.crt")?)
}

/// Certificate and key, in PEM, of a client, signed by the same authority. Their files are made in this folder.
pub(crate) fn client(folder: &Path) -> Result<(String, String)> {
    let [ca, ca_key] =
        ["ca.crt", "ca.key"].map(|file| self::folder().join(file).display().to_string());
    let subject = format!("/{CLIENT}");
    certificate(
        folder,
        "client",
        &[
            ["-subj", &subject],
            ["-CA", &ca],
            ["-CAkey", &ca_key],
            ["-addext", "basicConstraints=critical,CA:FALSE"],
            ["-addext", "extendedKeyUsage=clientAuth"],
        ]
        .concat(),
    )?;
    let read = |file: &str| fs::read_to_string(folder.join(file));
    Ok((read("client.crt")?, read("client.key")?))
}

/// The certificate of an authority that signed nothing, in this folder.
pub(crate) fn stranger(folder: &Path) -> Result<PathBuf> {
    authority(folder, "stranger")?;
    Ok(folder.join("stranger.crt"))
}

fn authority(folder: &Path, name: &str) -> Result<()> {
    let subject = format!("/CN=outbox test {name}");
    certificate(
        folder,
        name,
        &["-subj", &subject, "-addext", "keyUsage=critical,keyCertSign,cRLSign"],
    )
}

fn certificate(folder: &Path, name: &str, options: &[&str]) -> Result<()> {
    let (key, crt) = (format!("{name}.key"), format!("{name}.crt"));
    run(Command::new("openssl")
        .current_dir(folder)
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"])
        .args(["-nodes", "-days", DAYS, "-keyout", &key, "-out", &crt])
        .args(options))
    .map(drop)
}
