//! Scalable pictures: the type that figures are rendered into, its style and its escaping.
//!
//! Colours come from classes, so that one style sheet serves light, dark and printed pages. The
//! series palette is Okabe and Ito's ("Color Universal Design", 2008), which people with the
//! common colour blindnesses can tell apart; its yellow is darkened to be seen on white.

use std::fmt::Write as _;

use unicode_width::UnicodeWidthChar as _;

/// How many series have a colour of their own.
pub(crate) const COLOURS: usize = 8;
/// How many steps the colour ramp of a heat map has.
pub(crate) const RAMP: usize = 8;

const LIGHT: [&str; COLOURS] =
    ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#222222", "#b3a100"];
const DARK: [&str; COLOURS] =
    ["#4fa8e0", "#f0b429", "#2fc795", "#ff8a4c", "#e39bc4", "#8ccbf5", "#f2f2f2", "#e5d84a"];
/// ColorBrewer's YlGnBu, from little to much; on dark paper the other way round.
const RAMP_LIGHT: [&str; RAMP] =
    ["#edf8b1", "#c7e9b4", "#7fcdbb", "#41b6c4", "#1d91c0", "#225ea8", "#253494", "#081d58"];

/// A picture. It can only be made by this crate's figures, so its text is already escaped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Svg {
    body: String,
    width: u32,
    height: u32,
}

impl Svg {
    pub(crate) fn new(body: String, width: f64, height: f64) -> Svg {
        Svg { body, width: width.ceil() as u32, height: height.ceil() as u32 }
    }

    /// A file of its own, with its style and background.
    pub fn to_document(&self) -> String {
        let style = style();
        let background =
            format!(r#"<rect class="bg" width="{}" height="{}"/>"#, self.width, self.height);
        format!("{}<style>{style}</style>{background}{}</svg>\n", self.opening(), self.body)
    }

    /// For a page that has [`style`] once for all its figures.
    pub(crate) fn to_inline(&self) -> String {
        format!("{}{}</svg>", self.opening(), self.body)
    }

    fn opening(&self) -> String {
        let Svg { width, height, .. } = self;
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" class="fig" role="img" viewBox="0 0 {width} {height}" width="{width}" height="{height}">"#
        )
    }
}

/// The style sheet of all figures.
pub(crate) fn style() -> String {
    let mut css = String::from(
        "svg.fig{font:12px Arial,'Liberation Sans',Helvetica,sans-serif;\
         max-width:100%;height:auto}\
         .fig .hd{font-weight:600}\
         .fig .m{text-anchor:middle}.fig .e{text-anchor:end}\
         .fig .g,.fig .ax{fill:none;stroke-width:1;shape-rendering:crispEdges}\
         .fig .ln{fill:none;stroke-width:1.75;stroke-linejoin:round;stroke-linecap:round}\
         .fig .px{fill:none;stroke-width:1;shape-rendering:crispEdges}\
         .fig .a0{opacity:.6}.fig .a1{opacity:.8}.fig .wh{fill:none;stroke-width:1.25}\
         .fig .ol{fill:none;stroke-width:1.25}",
    );
    let dark_ramp: Vec<&str> = RAMP_LIGHT.iter().rev().copied().collect();
    css += &theme(
        &LIGHT,
        &RAMP_LIGHT,
        ["#fff", "#222", "#666", "#e4e4e4", "#8a8a8a", "#9a9a9a", "#d55e00"],
    );
    let dark = theme(
        &DARK,
        &dark_ramp,
        ["#16181c", "#e6e6e6", "#a5a5a5", "#33363c", "#80848c", "#8d9199", "#ff8a4c"],
    );
    let _ = write!(css, "@media screen and (prefers-color-scheme:dark){{{dark}}}");
    css
}

fn theme(series: &[&str], ramp: &[&str], greys: [&str; 7]) -> String {
    let [paper, ink, soft, grid, axis, reference, outline] = greys;
    let mut css = format!(
        ".fig .bg{{fill:{paper}}}.fig text{{fill:{ink}}}.fig text.s{{fill:{soft}}}.fig .g{{stroke:{grid}}}\
         .fig .ax{{stroke:{axis}}}.fig .fr{{fill:{reference}}}.fig .lr{{stroke:{reference}}}\
         .fig .wh{{stroke:{ink}}}.fig .ol{{stroke:{outline}}}"
    );
    for (i, colour) in series.iter().enumerate() {
        let _ = write!(css, ".fig .f{i}{{fill:{colour}}}.fig .l{i}{{stroke:{colour}}}");
    }
    for (i, colour) in ramp.iter().enumerate() {
        let _ =
            write!(css, ".fig .q{i}{{fill:{colour}}}.fig .px.q{i}{{fill:none;stroke:{colour}}}");
    }
    css
}

/// Text as XML character data or attribute value, without what XML 1.0 cannot carry.
pub(crate) struct Escaped<'a>(pub &'a str);

impl std::fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\t' | '\n' | '\r' => f.write_char(' ')?,
                c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => {
                    f.write_char('\u{fffd}')?
                }
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// A coordinate: a tenth of a pixel is enough, and `12` is shorter than `12.0`.
pub(crate) struct Px(pub f64);

impl std::fmt::Display for Px {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tenths = (self.0 * 10.0).round() as i64;
        let sign = if tenths < 0 { "-" } else { "" };
        let (whole, tenth) = (tenths.unsigned_abs() / 10, tenths.unsigned_abs() % 10);
        if tenth == 0 { write!(f, "{sign}{whole}") } else { write!(f, "{sign}{whole}.{tenth}") }
    }
}

/// About how wide a text of 12 px is, in pixels; rather too wide than too narrow, because no
/// font is known here.
pub(crate) fn text_width(text: &str) -> f64 {
    let em = |c: char| match c {
        'i' | 'j' | 'l' | '.' | ',' | ':' | ';' | '|' | '\'' | '!' | '(' | ')' | ' ' => 0.32,
        't' | 'r' | 'f' | 'I' => 0.42,
        'm' | 'w' | 'M' | 'W' | '%' | '@' => 0.92,
        'A'..='Z' => 0.72,
        '⁰'..='⁹' | '¹' | '²' | '³' | '⁻' => 0.4,
        c if c.width() == Some(0) => 0.0,
        c if c.width() == Some(2) => 1.05,
        _ => 0.6,
    };
    text.chars().map(em).sum::<f64>() * 12.0
}

/// `text`, cut to about `width` pixels with an ellipsis; the whole belongs in a tooltip.
pub(crate) fn shortened(text: &str, width: f64) -> String {
    if text_width(text) <= width {
        return text.to_owned();
    }
    let mut kept = String::new();
    for c in text.chars() {
        kept.push(c);
        if text_width(&kept) > width - 10.0 {
            kept.pop();
            break;
        }
    }
    kept.push('…');
    kept
}
