//! The cells that the arguments of a sweep ask for.

use crate::cli::Failure;
use crate::cli::args::RunArgs;
use crate::cli::axes::CELLS;
use rankdeck_core::statistics::below;
use rankdeck_types::words::count;
use std::collections::BTreeSet;

/// The cells that the arguments ask for; `None` when they ask for a single run.
pub(super) fn cells(args: &RunArgs) -> Result<Option<Vec<Vec<String>>>, Failure> {
    if args.seeds.is_none() && args.sweep.is_empty() && args.cells.is_none() {
        return Ok(None);
    }
    let mut cells = grid(&args.sweep.iter().map(|axis| axis.0.clone()).collect::<Vec<_>>());
    if let Some(path) = &args.cells {
        let text = std::fs::read_to_string(path).map_err(|error| {
            Failure::usage(format!("cannot read {}: {error}", path.display()))
                .hint("one cell per line, such as `learn.gamma=0.98 run.seed=3`")
        })?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let own: Vec<Vec<String>> =
            lines.map(|line| line.split_whitespace().map(str::to_owned).collect()).collect();
        cells = own.iter().flat_map(|own| cells.iter().map(|cell| [&own[..], &cell[..]].concat())).collect();
    }
    if let Some(n) = args.random {
        cells = sampled(cells, n);
    }
    if let Some(seeds) = &args.seeds {
        let with = |cell: &Vec<String>, seed: &u64| [&cell[..], &[format!("run.seed={seed}")]].concat();
        let all =
            cells.iter().flat_map(|cell| seeds.0.iter().map(|seed| with(cell, seed)).collect::<Vec<_>>());
        cells = all.take(CELLS + 1).collect();
    }
    distinct(&cells, &args.set)?;
    match cells.len() {
        0 => Err(Failure::usage("there is no cell to run").hint("give at least one value")),
        n if n > CELLS => Err(Failure::usage(format!("more than {} cells", count(CELLS as u64)))
            .hint("`--random N` takes N of them")),
        _ => Ok(Some(cells)),
    }
}

/// Refuses a key that is given twice, of which one would be lost, and a cell that is there twice.
fn distinct(cells: &[Vec<String>], sets: &[String]) -> Result<(), Failure> {
    let key = |set: &str| set.split_once('=').map_or(set, |(key, _)| key).trim().to_owned();
    let whole: BTreeSet<String> = sets.iter().map(|set| key(set)).collect();
    let mut seen = BTreeSet::new();
    for cell in cells.iter().take(CELLS) {
        let mut own = BTreeSet::new();
        for set in cell {
            let key = key(set);
            if whole.contains(&key) {
                return Err(Failure::usage(format!("`{key}` is given by --set, and the sweep changes it"))
                    .hint(format!("leave `--set {key}=...` out, or do not sweep `{key}`")));
            }
            if !own.insert(key.clone()) {
                let from =
                    if key == "run.seed" { "--seeds, --sweep and --cells" } else { "--sweep and --cells" };
                return Err(Failure::usage(format!(
                    "`{key}` is given twice for one run: {}",
                    cell.join(" ")
                ))
                .hint(format!("name it once among {from}")));
            }
        }
        if !seen.insert(cell) {
            return Err(Failure::usage(format!("two runs of the sweep are the same: {}", cell.join(" ")))
                .hint("name each value once; `--seeds 1..3` makes runs that differ"));
        }
    }
    Ok(())
}

/// Every combination of the axes; the last one changes fastest.
fn grid(axes: &[Vec<String>]) -> Vec<Vec<String>> {
    axes.iter().fold(vec![Vec::new()], |cells, axis| {
        let longer = |cell: &Vec<String>| {
            axis.iter().map(|set| [&cell[..], std::slice::from_ref(set)].concat()).collect::<Vec<_>>()
        };
        cells.iter().flat_map(longer).take(CELLS + 1).collect()
    })
}

/// `n` of the cells, the same ones each time, in their order.
fn sampled(mut cells: Vec<Vec<String>>, n: usize) -> Vec<Vec<String>> {
    let mut state = 1;
    while cells.len() > n {
        cells.remove(below(&mut state, cells.len()));
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::axes::parse_axis;

    #[test]
    fn what_is_given_twice_is_refused() {
        let cell = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let told = |cells: &[&str], sets: &[&str]| {
            let cells: Vec<Vec<String>> = cells.iter().map(|text| cell(text)).collect();
            distinct(&cells, &sets.iter().map(|set| (*set).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(told(&["a=1 run.seed=1", "a=1 run.seed=2"], &["b=1"]), Ok(()));
        for (cells, sets, says) in [
            (&["run.seed=1"][..], &["run.seed=3"][..], "given by --set"),
            (&["run.seed=1 run.seed=2"], &[], "twice for one run"),
            (&["a=1", "a=2", "a=1"], &[], "are the same"),
        ] {
            let failure = told(cells, sets).unwrap_err();
            assert!(failure.cause.error.contains(says) && !failure.cause.hint.is_empty(), "{failure}");
        }
    }

    #[test]
    fn a_grid_has_every_combination_and_a_sample_the_same_ones_each_time() {
        let axis = |text: &str| parse_axis(text).unwrap().0;
        let all = grid(&[axis("a=1,2"), axis("b=3,4,5")]);
        assert_eq!(all.len(), 6);
        assert_eq!((all[0].join(" "), all[5].join(" ")), ("a=1 b=3".into(), "a=2 b=5".into()));
        let some = sampled(all.clone(), 3);
        assert!(
            some.len() == 3 && some == sampled(all.clone(), 3) && some.iter().all(|cell| all.contains(cell))
        );
        assert_eq!(sampled(all.clone(), 9), all);
    }
}
