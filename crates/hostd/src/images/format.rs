//! Files that people mistake for raw images: told by their first or last bytes, and what to do with
//! them.
//!
//! A guest can write all of that itself into its own raw disk, and must not be locked out by it. So
//! the bytes alone are a reason to warn, and one to refuse only where something that no guest can
//! write says the same: the file's name, or a size that is none for a disk.

use super::ImageError;
use std::path::Path;

/// Bytes of the beginning, and of the end, that are read.
pub(super) const START_BYTES: usize = 8192;
pub(super) const END_BYTES: usize = 512;

/// Where a format's mark is.
#[derive(Clone, Copy)]
enum Mark {
    /// Magic bytes at an offset from the beginning.
    At(usize, &'static [u8]),
    /// In front of the end.
    End(&'static [u8]),
}

use Mark::{At, End};

/// Way to get at the contents.
#[derive(Clone, Copy)]
enum Way {
    /// `qemu-img convert -f` with this name.
    Convert(&'static str),
    /// The command that prints what is in it.
    Print(&'static str),
    /// The command that unpacks it.
    Unpack(&'static str),
}

use Way::{Convert, Print, Unpack};

/// One format.
pub(super) struct Format {
    mark: Mark,
    name: &'static str,
    way: Way,
    /// Endings of the names of such files.
    endings: &'static [&'static str],
}

const FORMATS: &[Format] = &[
    of(At(0, b"QFI\xfb\0\0\0\x01"), "qcow", Convert("qcow"), &["qcow"]),
    of(At(0, b"QFI\xfb"), "qcow2", Convert("qcow2"), &["qcow2", "qcow"]),
    of(At(0, b"QED\0"), "qed", Convert("qed"), &["qed"]),
    of(At(0, b"KDMV"), "vmdk", Convert("vmdk"), &["vmdk"]),
    of(At(0, b"COWD"), "vmdk", Convert("vmdk"), &["vmdk"]),
    of(At(0, b"# Disk DescriptorFile"), "vmdk", Convert("vmdk"), &["vmdk"]),
    of(At(0, b"vhdxfile"), "vhdx", Convert("vhdx"), &["vhdx"]),
    of(At(0, b"conectix"), "vhd", Convert("vpc"), &["vhd", "vpc"]),
    of(End(b"conectix"), "vhd", Convert("vpc"), &["vhd", "vpc"]),
    // VirtualBox writes a line of text first and its signature behind that.
    of(At(64, b"\x7f\x10\xda\xbe"), "vdi", Convert("vdi"), &["vdi"]),
    of(At(0, b"WithoutFreeSpace"), "parallels", Convert("parallels"), &["hdd", "hds"]),
    of(At(0, b"WithouFreSpacExt"), "parallels", Convert("parallels"), &["hdd", "hds"]),
    of(End(b"koly"), "dmg", Convert("dmg"), &["dmg"]),
    of(At(0, b"\x1f\x8b\x08"), "gzip", Print("gzip -dc"), &["gz", "gzip", "tgz"]),
    of(At(0, b"\xfd7zXZ\0"), "xz", Print("xz -dc"), &["xz", "txz"]),
    of(At(0, b"\x28\xb5\x2f\xfd"), "zstd", Print("zstd -dc"), &["zst", "zstd"]),
    of(At(0, b"\x04\x22\x4d\x18"), "lz4", Print("lz4 -dc"), &["lz4"]),
    of(At(4, b"1AY&SY"), "bzip2", Print("bzip2 -dc"), &["bz2", "bzip2"]),
    of(At(0, b"7z\xbc\xaf\x27\x1c"), "7z", Unpack("7z x"), &["7z"]),
    of(At(0, b"PK\x03\x04"), "zip", Unpack("unzip"), &["zip"]),
    of(At(257, b"ustar"), "tar", Unpack("tar xf"), &["tar", "ova"]),
];

const fn of(mark: Mark, name: &'static str, way: Way, endings: &'static [&'static str]) -> Format {
    Format { mark, name, way, endings }
}

impl Format {
    /// That which a file with these first and last bytes looks like.
    pub(super) fn of(start: &[u8], end: &[u8]) -> Option<&'static Format> {
        FORMATS.iter().find(|format| match format.mark {
            At(at, mark) => start.get(at..).is_some_and(|bytes| bytes.starts_with(mark)),
            End(mark) => end.starts_with(mark),
        })
    }

    /// The format that it looks like, and what to do.
    fn advice(&self, path: &Path) -> String {
        let (name, shown) = (self.name, path.display());
        match self.way {
            // What a qcow2 image holds can be served without a copy.
            Convert("qcow2") => format!(
                "{shown} looks like a qcow2 image: convert it with qemu-img convert -f qcow2 -O \
                 raw {shown} {shown}.raw, or serve it through nbdfuse (docs/images.md)"
            ),
            Convert(of_qemu) => format!(
                "{shown} looks like a {name} image: convert it with qemu-img convert -f {of_qemu} \
                 -O raw {shown} {shown}.raw"
            ),
            // By any name.
            Print(command) => format!(
                "{shown} looks packed ({name}): unpack it with {command} {shown} > {shown}.raw"
            ),
            Unpack(command) => format!(
                "{shown} looks packed ({name}): unpack it with {command} {shown}, and serve what \
                 is in it"
            ),
        }
    }

    /// The warning, for an image that is served all the same.
    ///
    /// # Errors
    /// When its name says the same, or its size that it is no disk, and it `may_refuse`.
    pub(super) fn judge(
        &self,
        path: &Path,
        size_bytes: u64,
        may_refuse: bool,
    ) -> Result<String, ImageError> {
        let advice = self.advice(path);
        let ending = path.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase);
        let is_named = ending.as_deref().is_some_and(|e| self.endings.contains(&e));
        let is_no_disk = !size_bytes.is_multiple_of(512);
        if may_refuse && (is_named || is_no_disk) {
            let but = match is_named {
                true => "if it is a raw image all the same, give it another name",
                false => {
                    "if it is a raw image all the same, give it a size in sectors of 512 bytes"
                }
            };
            return Err(ImageError::Format { advice, but });
        }
        Ok(format!(
            "{advice}; served as it is, guests see its bytes (if a guest wrote them into its own \
             raw disk, ignore this)"
        ))
    }
}

/// The warning of an image by ISO 9660 that a guest may write to.
pub(super) fn warn_of_iso(start: &[u8], path: &Path) -> Option<String> {
    let is_named = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("iso"));
    (is_named && start.starts_with(b"CD001")).then(|| {
        let shown = path.display();
        format!("{shown} looks like a CD or DVD (ISO 9660), and a guest can write to it: say ro")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(at: usize, mark: &[u8]) -> Option<&'static str> {
        let mut start = vec![0; START_BYTES];
        start[at..at + mark.len()].copy_from_slice(mark);
        Format::of(&start, &[0; END_BYTES]).map(|format| format.name)
    }

    fn judged(mark: &[u8], path: &str, size: u64) -> Result<String, String> {
        let format = Format::of(mark, &[]).expect("a format");
        format.judge(Path::new(path), size, true).map_err(|e| e.to_string())
    }

    #[test]
    fn formats_are_told_by_their_marks() {
        assert_eq!(told(0, b"QFI\xfb\0\0\0\x03"), Some("qcow2"));
        assert_eq!(told(0, b"QFI\xfb\0\0\0\x01"), Some("qcow"));
        assert_eq!(told(0, b"vhdxfile"), Some("vhdx"));
        assert_eq!(told(64, &[0x7f, 0x10, 0xda, 0xbe]), Some("vdi"));
        assert_eq!(told(0, b"\xfd7zXZ\0"), Some("xz"));
        assert_eq!(told(0, b"BZh91AY&SY"), Some("bzip2"));
        assert_eq!(told(257, b"ustar"), Some("tar"));
        // A boot sector, LUKS and nothing at all are ordinary disks.
        assert_eq!(told(510, b"\x55\xaa"), None);
        assert_eq!(told(0, b"LUKS\xba\xbe"), None);
        assert_eq!(told(0, b""), None);
        assert_eq!(Format::of(&[], b"conectix\0\0").map(|f| f.name), Some("vhd"));
        assert!(Format::of(b"\x1f", b"").is_none(), "a file of one byte");
    }

    #[test]
    fn what_a_guest_can_write_refuses_nothing() {
        let gzip = b"\x1f\x8b\x08";
        for (mark, path) in [(&gzip[..], "web.img"), (b"QFI\xfb\0\0\0\x03", "/dev/vg0/web")] {
            let warning = judged(mark, path, 1 << 20).unwrap();
            assert!(warning.contains("if a guest wrote them"), "{warning}");
        }
        assert!(
            judged(gzip, "web.img.gz", 1 << 20).unwrap_err().contains("gzip -dc web.img.gz > ")
        );
        assert!(judged(gzip, "WEB.GZ", 1 << 20).is_err());
        assert!(judged(gzip, "web.img", 1000).unwrap_err().contains("a size in sectors"));
        assert!(judged(b"QFI\xfb\0\0\0\x03", "web.qcow2", 1 << 20).is_err());
        let format = Format::of(gzip, &[]).unwrap();
        assert!(format.judge(Path::new("web.gz"), 1 << 20, false).is_ok(), "shown by FUSE");
    }

    #[test]
    fn a_disc_that_is_written_to_is_warned_of() {
        let of = |mark: &[u8], path: &str| warn_of_iso(mark, Path::new(path)).is_some();
        assert!(of(b"CD001", "a.iso") && of(b"CD001", "A.ISO"));
        assert!(!of(b"CD001", "web.img") && !of(b"", "a.iso"));
    }
}
