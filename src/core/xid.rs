//! What the numbers of the NVIDIA driver's error reports mean. Pure.

/// NVIDIA's list, as far as it tells what has happened to a GPU rather than to a program: numbers and words.
const MEANINGS: [(u64, &str); 17] = [
    (13, "a kernel failed"),
    (31, "a kernel used a wrong address"),
    (43, "a kernel was stopped"),
    (45, "earlier errors ended its work"),
    (48, "memory error that could not be corrected"),
    (62, "its microcontroller halted"),
    (63, "a row of its memory was replaced"),
    (64, "a row of its memory could not be replaced"),
    (74, "NVLink error"),
    (79, "it has fallen off the bus"),
    (92, "many memory errors that were corrected"),
    (94, "memory error, contained"),
    (95, "memory error, not contained"),
    (119, "its system processor does not answer"),
    (120, "its system processor failed"),
    (121, "error of the link to the processor"),
    (140, "memory error that could not be corrected"),
];

/// A number with what it means: `79 (it has fallen off the bus)`.
pub fn xid_words(xid: u64) -> String {
    match MEANINGS.iter().find(|(number, _)| *number == xid) {
        Some((_, meaning)) => format!("{xid} ({meaning})"),
        None => xid.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_the_driver_has_words_where_they_are_known() {
        assert_eq!(xid_words(79), "79 (it has fallen off the bus)");
        assert_eq!(xid_words(7), "7");
        assert!(MEANINGS.is_sorted_by(|a, b| a.0 < b.0));
    }
}
