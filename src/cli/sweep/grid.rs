//! The cells that the arguments of a sweep ask for.

use crate::cli::Failure;
use crate::cli::args::RunArgs;
use crate::cli::axes::CELLS;
use rankdeck_core::statistics::below;
use rankdeck_types::words::count;

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
    match cells.len() {
        0 => Err(Failure::usage("there is no cell to run").hint("give at least one value")),
        n if n > CELLS => Err(Failure::usage(format!("more than {} cells", count(CELLS as u64)))
            .hint("`--random N` takes N of them")),
        _ => Ok(Some(cells)),
    }
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
