//! The page's files, in the program: `share/web`.

/// A file of the page.
#[derive(PartialEq, Eq, Debug)]
pub struct Asset {
    pub path: &'static str,
    /// Value of the header Content-Type.
    pub kind: &'static str,
    pub bytes: &'static [u8],
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

macro_rules! asset {
    ($path:literal, $kind:expr, $file:literal) => {
        Asset {
            path: $path,
            kind: $kind,
            bytes: include_bytes!(concat!("../../../../../share/web/", $file)),
        }
    };
}

const ASSETS: &[Asset] = &[
    asset!("/", HTML, "index.html"),
    asset!("/app.css", STYLE, "app.css"),
    asset!("/app.js", SCRIPT, "app.js"),
    asset!("/charts.js", SCRIPT, "charts.js"),
    asset!("/data.js", SCRIPT, "data.js"),
    asset!("/parts.js", SCRIPT, "parts.js"),
    asset!("/views.js", SCRIPT, "views.js"),
    asset!("/icon.svg", "image/svg+xml", "icon.svg"),
    asset!("/vendor/uPlot.iife.min.js", SCRIPT, "vendor/uPlot.iife.min.js"),
    asset!("/vendor/uPlot.min.css", STYLE, "vendor/uPlot.min.css"),
    asset!("/vendor/LICENSE", "text/plain; charset=utf-8", "vendor/LICENSE"),
];

/// The file at a path.
pub fn find(path: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.path == path)
}
