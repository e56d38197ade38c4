//! Links between documents lead somewhere, and lists and figures that stand twice are equal.

use super::{between, files, read, repository};
use rankdeck_core::reason::reasons;
use std::collections::BTreeSet;

#[test]
fn every_link_leads_to_a_file_and_to_a_heading_of_it() {
    let mut pages = files(&["docs"], ".md");
    pages.extend(["README.md", "CHANGELOG.md", "CONTRIBUTING.md"].map(|name| repository().join(name)));
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link) {
            if link.starts_with("http") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: {link} leads nowhere", page.display());
            if !heading.is_empty() {
                let there = std::fs::read_to_string(&target).unwrap();
                let found =
                    there.lines().filter(|line| line.starts_with('#')).any(|line| anchor(line) == heading);
                assert!(found, "{}: {link} leads to no heading", page.display());
            }
        }
    }
}

/// A heading as forges make anchors of it.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn every_path_that_a_document_names_exists() {
    let mut pages = files(&["docs"], ".md");
    pages.extend(["README.md", "CONTRIBUTING.md"].map(|name| repository().join(name)));
    let mut missing = Vec::new();
    // A lab book names what there was.
    for page in pages.into_iter().filter(|page| !page.to_string_lossy().contains("/lab/")) {
        let text = std::fs::read_to_string(&page).unwrap();
        for name in text.split('`').skip(1).step_by(2) {
            let roots = ["src/", "tests/", "benches/", "examples/", "configs/"];
            let placeholder =
                name.contains(char::is_whitespace) || name.contains("NAME") || name.contains("ENV");
            if roots.iter().any(|root| name.starts_with(root))
                && !placeholder
                && !repository().join(name).exists()
            {
                missing.push(format!("{}: {name}", page.display()));
            }
        }
    }
    assert!(missing.is_empty(), "paths that are not there: {missing:#?}");
}

#[test]
fn every_test_that_the_findings_name_exists() {
    let pages = ["docs/lab/findings.md", "docs/lab/peers.md", "docs/lab/screen.md"].map(read);
    let mut functions = BTreeSet::new();
    for path in files(&["tests", "src"], ".rs") {
        let text = std::fs::read_to_string(path).unwrap();
        let names = text.split("fn ").skip(1).filter_map(|rest| Some(rest.split_once('(')?.0.to_owned()));
        functions.extend(names);
    }
    let cases = read("benches/lab/cases.py");
    let mut missing = Vec::new();
    let rows = pages.iter().flat_map(|page| page.lines()).filter(|line| line.starts_with('|'));
    let names: Vec<&str> = rows
        .filter_map(|row| row.trim_end_matches(['|', ' ']).rsplit_once('|'))
        .flat_map(|(_, cell)| cell.split('`').skip(1).step_by(2))
        .collect();
    assert!(names.len() > 160, "{names:?}");
    for name in names {
        let there = match name.strip_prefix("lab: ") {
            Some(case) => cases.contains(&format!("\"{case}\"")),
            None => functions.contains(name),
        };
        if !there {
            missing.push(name);
        }
    }
    assert!(missing.is_empty(), "tests that are not there: {missing:#?}");
}

/// `make gpu-test` filters by that word.
#[test]
fn every_test_that_needs_a_gpu_is_run_by_make_gpu_test() {
    let script = read("tests/setup/gpu_test.sh");
    assert!(script.contains("-- --ignored gpu") && script.contains("[ \"$passed\" -eq \"$wanted\" ]"));
    let mut found = Vec::new();
    for path in files(&["tests", "src"], ".rs") {
        let text = std::fs::read_to_string(&path).unwrap();
        for rest in text.split("#[ignore = \"GPU").skip(1) {
            let name =
                rest.split_once("fn ").and_then(|(_, rest)| rest.split_once('(')).map(|(name, _)| name);
            // A test of tests, such as this one, names none.
            found.extend(name.filter(|_| !path.ends_with("links.rs")).map(str::to_owned));
        }
    }
    assert!(found.len() >= 4 && found.iter().all(|name| name.contains("gpu")), "{found:?}");
}

#[test]
fn documents_that_sources_and_configurations_name_exist() {
    for ending in [".rs", ".toml", ".py"] {
        for path in files(&["src", "configs", "tests", "benches", "examples"], ending) {
            let text = std::fs::read_to_string(&path).unwrap();
            for rest in text.split("docs/").skip(1) {
                let end = rest
                    .find(|c: char| !c.is_ascii_alphanumeric() && !"-_./".contains(c))
                    .unwrap_or(rest.len());
                let name = rest[..end].trim_end_matches('.');
                if name.ends_with(".md") {
                    assert!(repository().join("docs").join(name).exists(), "{}: docs/{name}", path.display());
                }
            }
        }
    }
}

#[test]
fn the_figures_of_the_readme_are_those_of_the_benchmarks() {
    let (readme, benchmarks) = (read("README.md"), read("docs/BENCHMARKS.md"));
    let rows: Vec<&str> =
        between(&readme, "figures").lines().filter(|line| line.starts_with('|')).skip(2).collect();
    assert!(!rows.is_empty());
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let figures: Vec<&str> = cells[1..].iter().filter(|cell| !cell.is_empty()).copied().collect();
        // A reference's figure stands behind its name.
        let figures = figures.iter().map(|cell| {
            cell.split_once(' ')
                .filter(|(name, _)| name.starts_with(char::is_alphabetic))
                .map_or(*cell, |(_, figure)| figure)
        });
        for figure in figures {
            assert!(
                benchmarks.contains(figure),
                "docs/BENCHMARKS.md does not have {figure} of README.md: {row}"
            );
        }
    }
}

#[test]
fn every_reason_of_a_verdict_is_explained_to_users() {
    let text = read("docs/TROUBLESHOOTING.md");
    for row in reasons() {
        assert!(text.contains(&format!("`{}`", row.name)), "docs/TROUBLESHOOTING.md lacks {}", row.name);
    }
}
