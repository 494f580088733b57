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

/// All detectors of the same thing.
pub struct Detectors<T: ?Sized + 'static> {
    /// What they see, in the plural: for errors.
    pub what: &'static str,
    pub best_first: &'static [Detector<T>],
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

impl<T: ?Sized> Detectors<T> {
    /// The names of those that are wanted: all of them, or the one of this name.
    pub fn names(&self, wanted: Option<&str>) -> impl Iterator<Item = &'static str> {
        let names = self.best_first.iter().map(|detector| detector.name);
        names.filter(move |name| wanted.is_none_or(|wanted| wanted == *name))
    }

    /// Opens the best one that works in this guest, or the one that is `wanted`.
    ///
    /// # Errors
    /// None works, or there is none of that name; each with its reason.
    pub fn open(&self, wanted: Option<&str>) -> Result<Chosen<T>, NoDetector> {
        let (what, mut passed_over) = (self.what, Vec::new());
        let fits = |detector: &&Detector<T>| wanted.is_none_or(|name| name == detector.name);
        for detector in self.best_first.iter().filter(fits) {
            match (detector.open)() {
                Ok(detector) => return Ok(Chosen { detector, passed_over }),
                Err(error) => passed_over.push(Obstacle { name: detector.name, error }),
            }
        }
        match wanted {
            Some(name) if passed_over.is_empty() => {
                let known: Vec<&str> = self.names(None).collect();
                Err(NoDetector::Unknown { what, wanted: name.into(), known: known.join(", ") })
            }
            _ => {
                let reasons: Vec<String> = passed_over.iter().map(Obstacle::to_string).collect();
                Err(NoDetector::Closed { what, reasons: reasons.join("; ") })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closed() -> io::Result<Box<str>> {
        Err(io::Error::other("no door"))
    }

    const DOORS: Detectors<str> = Detectors {
        what: "doors",
        best_first: &[
            Detector { name: "best", open: closed },
            Detector { name: "good", open: || Ok("good".into()) },
            Detector { name: "fair", open: || Ok("fair".into()) },
        ],
    };

    #[test]
    fn the_best_that_works_is_taken_or_the_one_that_is_named() {
        let chosen = DOORS.open(None).unwrap();
        assert_eq!(&*chosen.detector, "good");
        assert_eq!(chosen.passed_over[0].to_string(), "best: no door");
        assert_eq!(&*DOORS.open(Some("fair")).unwrap().detector, "fair");
    }

    #[test]
    fn what_is_named_is_not_replaced_and_the_error_says_why() {
        let error = |wanted| DOORS.open(Some(wanted)).err().unwrap().to_string();
        assert_eq!(error("best"), "doors cannot be seen here (best: no door); run as root");
        assert_eq!(error("x"), "doors are not seen by \"x\"; choose one of best, good, fair");
    }
}
