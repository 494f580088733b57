//! Chooses among detectors of the same thing, the best first: the first that works in this
//! guest, or the one that the user names. Says why better ones do not work.

use std::{fmt, io};

/// A detector that can be opened.
pub struct Detector<T: ?Sized> {
    /// As the command line and `status` name it.
    pub name: &'static str,
    /// Opens it; fails where this guest does not have what it needs.
    pub open: fn() -> io::Result<Box<T>>,
}

/// The detector that was opened.
pub struct Chosen<T: ?Sized> {
    pub detector: Box<T>,
    /// Better ones, and why they do not work here.
    pub passed_over: Vec<Obstacle>,
}

/// Why a detector does not work here.
#[derive(Debug)]
pub struct Obstacle {
    pub name: &'static str,
    pub error: io::Error,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.error)
    }
}

/// No detector was opened.
#[derive(Debug, thiserror::Error)]
pub enum NoDetector {
    /// The user named an unknown detector.
    #[error("{what} are not seen by {wanted:?}; choose one of {known}")]
    Unknown {
        /// What is to be seen.
        what: &'static str,
        wanted: String,
        /// Those that there are.
        known: String,
    },
    /// No detector works here, or not the one that the user named.
    #[error("{what} cannot be seen here ({reasons}); run as root")]
    Closed {
        /// What is to be seen.
        what: &'static str,
        /// One reason for each that was tried.
        reasons: String,
    },
}

/// The first of `detectors` that works, or the one that is `wanted`. `what` is to be seen
/// by it, in the plural: for the error.
///
/// # Errors
/// None works; each with its reason.
pub fn choose<T: ?Sized>(
    what: &'static str,
    detectors: &[Detector<T>],
    wanted: Option<&str>,
) -> Result<Chosen<T>, NoDetector> {
    let mut passed_over = Vec::new();
    let fits = |detector: &&Detector<T>| wanted.is_none_or(|name| name == detector.name);
    for detector in detectors.iter().filter(fits) {
        match (detector.open)() {
            Ok(detector) => return Ok(Chosen { detector, passed_over }),
            Err(error) => passed_over.push(Obstacle { name: detector.name, error }),
        }
    }
    match wanted {
        Some(name) if passed_over.is_empty() => {
            let known: Vec<&str> = detectors.iter().map(|detector| detector.name).collect();
            Err(NoDetector::Unknown { what, wanted: name.into(), known: known.join(", ") })
        }
        _ => {
            let reasons: Vec<String> = passed_over.iter().map(Obstacle::to_string).collect();
            Err(NoDetector::Closed { what, reasons: reasons.join("; ") })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closed() -> io::Result<Box<str>> {
        Err(io::Error::other("no door"))
    }

    const DETECTORS: [Detector<str>; 3] = [
        Detector { name: "best", open: closed },
        Detector { name: "good", open: || Ok("good".into()) },
        Detector { name: "fair", open: || Ok("fair".into()) },
    ];

    #[test]
    fn the_best_that_works_is_taken_or_the_one_that_is_named() {
        let chosen = choose("doors", &DETECTORS, None).unwrap();
        assert_eq!(&*chosen.detector, "good");
        assert_eq!(chosen.passed_over[0].to_string(), "best: no door");
        assert_eq!(&*choose("doors", &DETECTORS, Some("fair")).unwrap().detector, "fair");
    }

    #[test]
    fn what_is_named_is_not_replaced_and_the_error_says_why() {
        let error = |wanted| choose("doors", &DETECTORS, Some(wanted)).err().unwrap().to_string();
        assert_eq!(error("best"), "doors cannot be seen here (best: no door); run as root");
        assert_eq!(error("x"), "doors are not seen by \"x\"; choose one of best, good, fair");
    }
}
