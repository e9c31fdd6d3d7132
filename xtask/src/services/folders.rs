//! Where downloads, installed servers and data live.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Result;

/// The folder of everything that is downloaded or built outside the clone:
/// `$OUTBOX_CACHE_DIR`, or `$HOME/.cache/outbox`.
pub fn cache() -> PathBuf {
    let folder = match std::env::var_os("OUTBOX_CACHE_DIR") {
        Some(folder) if !folder.is_empty() => PathBuf::from(folder),
        _ => PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/tmp".into()))
            .join(".cache/outbox"),
    };
    std::path::absolute(&folder).unwrap_or(folder)
}

/// The folder of servers and their data; see the module's text for the reason of the second place.
pub(crate) fn servers() -> PathBuf {
    if is_root() && !open_to_all(&cache()) {
        return PathBuf::from("/var/cache/outbox-services");
    }
    cache().join("services")
}

pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// Whether every user may pass through the folder and all above it; what does not exist yet will be created so.
fn open_to_all(folder: &Path) -> bool {
    folder.ancestors().filter_map(|f| fs::metadata(f).ok()).all(|f| f.mode() & 0o001 != 0)
}

/// Holds off other developers' commands that install, start or stop servers, until dropped.
pub(crate) fn lock() -> Result<File> {
    let path = servers().join("lock");
    create(&servers())?;
    let file = File::create(&path).map_err(|e| format!("cannot create {}: {e}", path.display()))?;
    file.lock().map_err(|e| format!("cannot lock {}: {e}", path.display()))?;
    Ok(file)
}

pub(crate) fn create(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)
        .map_err(|e| format!("cannot create the folder {}: {e}", folder.display()).into())
}

/// A data folder of a private server, removed when dropped.
#[derive(Debug)]
pub(crate) struct PrivateFolder(PathBuf);

impl PrivateFolder {
    pub(crate) fn new(server: &str) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let parent = servers().join("private");
        create(&parent)?;
        remove_abandoned(&parent);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = parent.join(format!("{server}-{number}.{}", std::process::id()));
        // A killed process with the same pid may have left one.
        let _ = fs::remove_dir_all(&folder);
        create(&folder)?;
        Ok(Self(folder))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Removes the folders of processes that were killed; the pid is the name's extension.
fn remove_abandoned(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let path = entry.path();
        let Some(pid) = path.extension().and_then(|e| e.to_str()) else { continue };
        if !Path::new("/proc").join(pid).exists() {
            let _ = fs::remove_dir_all(&path);
        }
    }
}
