//! Patterns of paths, such as `out/*.bin`: `*` and `?` stand for text without `/`, `**` also for directories.
//!
//! A pattern without `/` is one of names, wherever they are.

/// Returns whether a path below a directory, with `/`, fits a pattern.
pub fn fits(pattern: &str, path: &str) -> bool {
    let pattern = pattern.trim_start_matches("./");
    match pattern.contains('/') {
        true => fits_all(pattern.as_bytes(), path.as_bytes()),
        false => fits_all(pattern.as_bytes(), path.rsplit('/').next().unwrap_or(path).as_bytes()),
    }
}

/// Compares from the latest star on: a mismatch has it take one byte more, so that the work is bounded by the
/// product of both lengths.
fn fits_all(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut read) = (0, 0);
    // Of the latest `*` and the latest `**`: where the pattern continues, and from where the text may.
    let (mut star, mut stars) = (None, None);
    loop {
        match pattern.get(at) {
            Some(b'*') if pattern.get(at + 1) == Some(&b'*') => {
                at += 2;
                // `a/**/b` fits `a/b`.
                let is_directory = pattern.get(at) == Some(&b'/') && begins_name(text, read);
                at += usize::from(is_directory);
                (star, stars) = (None, Some((at, read, is_directory)));
                continue;
            }
            Some(b'*') => {
                at += 1;
                star = Some((at, read));
                continue;
            }
            Some(b'?') if text.get(read).is_some_and(|byte| *byte != b'/') => {
                (at, read) = (at + 1, read + 1);
                continue;
            }
            Some(byte) if text.get(read) == Some(byte) => {
                (at, read) = (at + 1, read + 1);
                continue;
            }
            None if read == text.len() => return true,
            _ => {}
        }
        match (&mut star, &mut stars) {
            (Some((next, from)), _) if text.get(*from).is_some_and(|byte| *byte != b'/') => {
                *from += 1;
                (at, read) = (*next, *from);
            }
            (_, Some((next, from, is_directory))) if *from < text.len() => {
                *from += 1;
                while *is_directory && *from < text.len() && !begins_name(text, *from) {
                    *from += 1;
                }
                (at, read) = (*next, *from);
                star = None;
            }
            _ => return false,
        }
    }
}

fn begins_name(text: &[u8], at: usize) -> bool {
    at.checked_sub(1).is_none_or(|before| text.get(before) == Some(&b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_fits_paths_below_a_directory() {
        for (pattern, path) in [
            ("out/*.bin", "out/a.bin"),
            ("./out/*.bin", "out/a.bin"),
            ("*.bin", "deep/below/a.bin"),
            ("out/**/*.bin", "out/a.bin"),
            ("out/**/*.bin", "out/x/y/a.bin"),
            ("out/step-??", "out/step-10"),
            ("**/last", "x/last"),
            ("**/last", "last"),
            ("a*b*c", "aXbYbc"),
            ("out/**", "out/a/b"),
            ("größe*", "größe-1"),
        ] {
            assert!(fits(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in [
            ("out/*.bin", "out/x/a.bin"),
            ("out/*.bin", "in/out/a.bin"),
            ("*.bin", "a.bin/b"),
            ("out/?", "out/"),
            ("out/?", "out//"),
            ("out/**/b", "out/xb"),
            ("", "a"),
            ("a", "ab"),
        ] {
            assert!(!fits(pattern, path), "{pattern} {path}");
        }
    }

    #[test]
    fn long_pattern_of_stars_ends() {
        assert!(!fits(&format!("{}c", "*a".repeat(100)), &"a".repeat(4000)));
    }
}
