//! "Did you mean": the closest known word to an unknown one.

/// Edits between two words: insertions, deletions, substitutions, and swaps of neighbours.
fn distance(a: &str, b: &str) -> usize {
    strsim::osa_distance(&a.to_lowercase(), &b.to_lowercase())
}

/// The known word that `word` is most likely meant to be, if any is close: by spelling, as one part of it
/// (`lambda` of `gae_lambda`), as its beginning, or by its initials (`lr` for `learning_rate`).
pub fn closest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let length = word.chars().count();
    // No key is as long, and the search is quadratic.
    if length > 64 {
        return None;
    }
    let known: Vec<&str> = known.into_iter().collect();
    let near = |candidate: &str| {
        let edits = distance(word, candidate);
        (edits <= (length / 3).max(1) && edits < candidate.chars().count().min(length.max(1)))
            .then_some(edits)
    };
    let by = |score: &dyn Fn(&str) -> Option<usize>| {
        known.iter().filter_map(|name| score(name).map(|edits| (edits, *name))).min().map(|(_, name)| name)
    };
    let part = |name: &str| name.split('_').filter(|part| part.len() > 3).filter_map(near).min();
    let start = |name: &str| (length >= 3 && (name.starts_with(word) || word.starts_with(name))).then_some(0);
    let initials = |name: &str| {
        let letters: String = name.split('_').filter_map(|part| part.chars().next()).collect();
        (length >= 2 && letters == word).then_some(0)
    };
    by(&near).or_else(|| by(&initials)).or_else(|| by(&start)).or_else(|| by(&part))
}

/// A typing mistake rather than another word.
pub fn nearly(word: &str, known: &str) -> bool {
    distance(word, known) <= 2.min(word.chars().count() / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_meant() {
        let known = ["gpus", "nproc", "address", "identity_file", "num_minibatches"];
        assert_eq!(closest("gpu", known), Some("gpus"));
        assert_eq!(closest("adress", known), Some("address"));
        assert_eq!(closest("identityfile", known), Some("identity_file"));
        assert_eq!(closest("nporc", known), Some("nproc"));
        assert_eq!(closest("colour", known), None);
        let learn = ["learning_rate", "gae_lambda", "gamma", "learn"];
        assert_eq!(closest("lamda", learn), Some("gae_lambda"));
        assert_eq!(closest("lr", learn), Some("learning_rate"));
        assert_eq!(closest("learning", learn), Some("learn"));
        assert_eq!(closest("", known), None);
    }

    #[test]
    fn a_swap_is_one_edit() {
        assert_eq!(distance("nporc", "nproc"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
