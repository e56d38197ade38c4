//! Stage 4: describes findings: evidence, the sentence of the reason, and advice.
//!
//! [`evidence`] describes findings about live ranks and hosts, [`facts`] exits, weights, totals and learning
//! problems; [`builder`] makes the verdict and has the short texts that they share. Nothing here decides.

pub(crate) mod builder;
pub(crate) mod evidence;
pub(crate) mod facts;
