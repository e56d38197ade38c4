//! The command line of `rankdeck-trainer`, and what it does without libtorch.
//!
//! Packages install the launcher as `bin/rankdeck-trainer` and the trainer in `libexec/rankdeck`. The
//! dynamic linker starts no program whose libraries are missing, so the launcher needs none: it answers
//! `--help`, sets up and checks environments, and for everything else looks for libtorch and becomes the
//! trainer. Agents start the trainer itself.

pub mod environments;
pub mod error;
pub mod experiment;
pub mod flags;
pub mod search;
