//! Numbers for people: few digits, a unit that fits, the same number of decimals down a column.

/// Text of a cell without a value.
pub const ABSENT: &str = "–";
/// Smaller numbers have too many zeros to be read; `figures.js` has the same.
const SMALL: f64 = 1e-4;
/// Units of time, each with its length in ms.
const TIMES: [(&str, f64); 4] = [("ns", 1e-6), ("µs", 1e-3), ("ms", 1.0), ("s", 1e3)];

/// Units of sizes, each with its length in MiB.
const SIZES: [(&str, f64); 3] = [("B", 1.0 / 1_048_576.0), ("KiB", 1.0 / 1024.0), ("MiB", 1.0)];

/// A time in ms with three significant digits in the unit that fits: `85.2 µs`, `159 ms`, `1.5 s`.
pub fn time_ms(ms: f64) -> String {
    if ms == 0.0 || !ms.is_finite() {
        return if ms == 0.0 { "0 ms" } else { ABSENT }.to_owned();
    }
    let fits = |&(_, length): &(&str, f64)| (ms / length).abs() < 999.5;
    let (unit, length) = TIMES.into_iter().find(fits).unwrap_or(TIMES[3]);
    format!("{} {unit}", short(ms / length, 3))
}

/// A size in MiB with three significant digits in the unit that fits: `184 KiB`, `18.9 MiB`.
pub fn size_mib(mib: f64) -> String {
    let fits = |&(_, length): &(&str, f64)| (mib / length).abs() < 999.5;
    let (unit, length) = SIZES.into_iter().find(fits).unwrap_or(SIZES[2]);
    format!("{} {unit}", short(mib / length, 3))
}

/// As [`size_mib`], a second.
pub fn rate_mib_s(mib_s: f64) -> String {
    size_mib(mib_s) + "/s"
}

/// As [`significant`], without zeros at the end of a fraction: `50` rather than `50.0`.
pub fn short(value: f64, digits: i32) -> String {
    let text = significant(value, digits);
    if !text.contains('.') || text.contains('e') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// `value` with `digits` significant digits and thousands separated: `1,234`, `12.3`, `0.00457`.
///
/// Scientific only below 10^-4 and from 10^15 on; absent for values that are not finite.
pub fn significant(value: f64, digits: i32) -> String {
    if value != 0.0 && value.abs() < SMALL {
        return format!("{value:.*e}", digits.max(1) as usize - 1);
    }
    fixed(value, decimals(value, digits))
}

/// `value` with exactly this many decimals and thousands separated.
pub fn fixed(value: f64, decimals: usize) -> String {
    if !value.is_finite() {
        return ABSENT.to_owned();
    }
    if value.abs() >= 1e15 {
        return format!("{value:.3e}");
    }
    let plain = format!("{:.*}", decimals, value.abs());
    let (whole, fraction) = plain.split_once('.').unwrap_or((&plain, ""));
    let is_zero = plain.bytes().all(|b| matches!(b, b'0' | b'.'));
    let sign = if value < 0.0 && !is_zero { "-" } else { "" };
    let dot = if fraction.is_empty() { "" } else { "." };
    format!("{sign}{}{dot}{fraction}", group(whole))
}

/// A whole number with thousands separated: `12,345`.
pub fn count(value: u64) -> String {
    group(&value.to_string())
}

/// Computes the decimals of a column of numbers: two significant digits for its smallest value, at
/// least three and at most five for its largest.
pub(crate) fn column_decimals(values: impl Iterator<Item = f64> + Clone) -> usize {
    let sizes = values.map(f64::abs).filter(|v| v.is_finite() && *v > 0.0);
    let Some(max) = sizes.clone().max_by(f64::total_cmp) else { return 0 };
    let min = sizes.clone().min_by(f64::total_cmp).unwrap_or(max);
    if sizes.clone().all(|v| v.fract() == 0.0) {
        return 0;
    }
    decimals(min, 2).clamp(decimals(max, 3), decimals(max, 5))
}

/// Formats `value` for a column of `column_decimals` decimals. A small value that they would turn
/// into zero keeps two significant digits, because "0.00" would be false; one without a digit in
/// four decimals is `<0.0001`.
pub(crate) fn in_column(value: f64, column_decimals: usize) -> String {
    let lost = value != 0.0 && value.abs() < 0.5 * 10f64.powi(-(column_decimals as i32));
    match lost {
        true if value.abs() >= SMALL => significant(value, 2),
        true if value < 0.0 => format!(">-{SMALL}"),
        true => format!("<{SMALL}"),
        false => fixed(value, column_decimals),
    }
}

/// A time in ms in a table: three significant digits in every row, so that of two times the longer
/// one is never shown as the shorter, whatever their columns are.
pub(crate) fn time_cell(ms: f64) -> String {
    if ms != 0.0 && ms.abs() < SMALL { in_column(ms, 0) } else { significant(ms, 3) }
}

fn decimals(value: f64, digits: i32) -> usize {
    if value == 0.0 || !value.is_finite() {
        return 0;
    }
    // Rounding may carry into one more digit (9.996 → 10.0), which then needs one decimal less.
    let exponent = value.abs().log10().floor() as i32;
    let step = 10f64.powi(exponent - digits + 1);
    let carried = (value.abs() / step).round() * step >= 10f64.powi(exponent + 1) * (1.0 - 1e-12);
    (digits - 1 - exponent - i32::from(carried)).clamp(0, 12) as usize
}

fn group(digits: &str) -> String {
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn significant_digits() {
        let check = |value, want| assert_eq!(significant(value, 3), want);
        check(0.0, "0");
        check(1234.5, "1,234");
        check(12.34, "12.3");
        check(9.996, "10.0");
        check(0.004567, "0.00457");
        check(-1234567.0, "-1,234,567");
        check(-0.0, "0");
        check(f64::NAN, ABSENT);
        check(f64::INFINITY, ABSENT);
        check(1e300, "1.000e300");
        check(1e-300, "1.00e-300");
        check(0.0000000165, "1.65e-8");
    }

    #[test]
    fn times_have_the_unit_that_fits() {
        let check = |ms, want| assert_eq!(time_ms(ms), want);
        check(0.0, "0 ms");
        check(0.0000165, "16.5 ns");
        check(0.0852, "85.2 µs");
        check(0.9994, "999 µs");
        check(0.9996, "1 ms");
        check(20.0, "20 ms");
        check(100.0, "100 ms");
        check(159.4, "159 ms");
        check(1_502.0, "1.5 s");
        check(30_132.0, "30.1 s");
        check(3_600_000.0, "3,600 s");
        check(f64::NAN, ABSENT);
    }

    #[test]
    fn times_of_a_table_have_three_digits_each() {
        let shown = [8.463, 8.4699, 51_571.6, 0.06, 0.00000001, f64::NAN].map(time_cell);
        assert_eq!(shown, ["8.46", "8.47", "51,572", "0.0600", "<0.0001", ABSENT]);
    }

    #[test]
    fn sizes_and_rates_have_the_unit_that_fits() {
        let check = |mib, want| assert_eq!(size_mib(mib), want);
        check(0.0, "0 B");
        check(4.69e-5, "49.2 B");
        check(0.1797, "184 KiB");
        check(18.94, "18.9 MiB");
        check(12_345.6, "12,346 MiB");
        assert_eq!(rate_mib_s(0.0000469), "49.2 B/s");
        assert_eq!(rate_mib_s(36.3), "36.3 MiB/s");
    }

    #[test]
    fn a_column_shares_its_decimals() {
        let check = |values: &[f64], want: &[&str]| {
            let decimals = column_decimals(values.iter().copied());
            let shown: Vec<_> = values.iter().map(|v| in_column(*v, decimals)).collect();
            assert_eq!(shown, want);
        };
        check(&[12.3456, 450.2, 1203.0], &["12", "450", "1,203"]);
        check(&[0.123, 1.5, 12.0], &["0.12", "1.50", "12.00"]);
        check(&[1.0, 20.0, 300.0], &["1", "20", "300"]);
        check(&[0.0004, 1203.5], &["0.00040", "1,203.5"]);
        check(&[0.0000000165, -0.00002, 0.5, 1203.5], &["<0.0001", ">-0.0001", "0.5", "1,203.5"]);
        check(&[f64::NAN, 0.0], &[ABSENT, "0"]);
        check(&[], &[]);
    }
}
