//! What each iteration since the last report did: gathered over all ranks with the report, so that it costs
//! no collective of its own.
//!
//! Invariant ROWS-1: which iterations are kept follows from their numbers and from how many there were
//! between two reports, so all ranks keep the same ones. A report has at most [`MOST`] of them, of fast
//! loops every second, fourth and so on.

use crate::algo::{IterationStats, Stat};
use crate::collect::{Interval, RankCounters};
use crate::counters::push_bounded;
use crate::metrics_file::Row;
use rankdeck_proto::clock::wall_time;

/// Most iterations between two reports.
const MOST: usize = 64;

/// What an iteration did on this rank, and what all ranks know of it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct IterationRow {
    known: Row,
    learning_rate: f64,
    losses: Vec<Stat>,
    /// Sum of the returns of this rank's episodes, their number, sum of their lengths.
    episodes: [f64; 3],
}

impl IterationRow {
    /// The numbers that are averaged over the ranks.
    pub(super) fn values(&self) -> impl Iterator<Item = f64> + '_ {
        self.losses.iter().map(|stat| stat.value).chain(self.episodes)
    }
}

/// Iterations since the last report.
#[derive(Debug, Default)]
pub(super) struct Rows {
    kept: Vec<IterationRow>,
    /// Which ones are kept: multiples of two to this power.
    power: u32,
    /// Episodes since the last report.
    interval: Interval,
    /// Episodes since the row kept last.
    open: [f64; 3],
}

impl Rows {
    /// An iteration has ended; `own` has its episodes on this rank.
    pub(super) fn add(
        &mut self,
        train_iter: u64,
        updates: u64,
        totals: &RankCounters,
        stats: &IterationStats,
        own: Interval,
    ) {
        let Interval { returns, length, latest } = own;
        let ended = [returns.sum, returns.count as f64, length as f64];
        self.open.iter_mut().zip(ended).for_each(|(sum, more)| *sum += more);
        self.interval.returns = self.interval.returns.plus(returns);
        self.interval.length += length;
        latest.into_iter().for_each(|one| push_bounded(&mut self.interval.latest, one));
        if !train_iter.is_multiple_of(1 << self.power.min(62)) {
            return;
        }
        self.kept.push(IterationRow {
            known: Row {
                train_iter,
                env_step: totals.env_step,
                episodes: totals.episodes,
                updates,
                time: wall_time(),
                ..Row::default()
            },
            learning_rate: stats.learning_rate,
            losses: stats.losses.clone(),
            episodes: std::mem::take(&mut self.open),
        });
        if self.kept.len() > MOST {
            self.power += 1;
            let power = self.power;
            let mut passed = [0.0; 3];
            self.kept.retain_mut(|row| {
                passed.iter_mut().zip(row.episodes).for_each(|(sum, more)| *sum += more);
                let keeps = row.known.train_iter.is_multiple_of(1 << power.min(62));
                if keeps {
                    row.episodes = std::mem::take(&mut passed);
                }
                keeps
            });
            self.open.iter_mut().zip(passed).for_each(|(sum, more)| *sum += more);
        }
    }

    /// What there is to report.
    pub(super) fn take(&mut self) -> (Vec<IterationRow>, Interval) {
        (std::mem::take(&mut self.kept), std::mem::take(&mut self.interval))
    }
}

/// The same of all ranks: `means` are the averages of [`IterationRow::values`], one row after the other.
pub(super) fn merged(rows: &[IterationRow], names: &[&'static str], means: &[f64]) -> Vec<Row> {
    let each = names.len() + 3;
    let rows = rows.iter().filter(|row| row.losses.len() == names.len());
    rows.zip(means.chunks_exact(each))
        .map(|(row, means)| {
            let (losses, episodes) = means.split_at(names.len());
            // Means over the ranks on both sides: their number cancels out.
            let [sum, count, length] = [0, 1, 2].map(|i| episodes.get(i).copied().unwrap_or(0.0));
            let own = [
                ("charts/episodic_return", sum / count),
                ("charts/episodic_length", length / count),
                ("charts/learning_rate", row.learning_rate),
            ];
            let values = names.iter().copied().zip(losses.iter().copied()).chain(own);
            Row { values: values.collect(), ..row.known.clone() }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(rows: &mut Rows, train_iter: u64, episode_return: Option<f64>) {
        let mut own = Interval::default();
        if let Some(episode_return) = episode_return {
            own.add(train_iter, episode_return, 10);
        }
        let stats = IterationStats {
            losses: vec![Stat::loss("losses/a", train_iter as f64)],
            ..IterationStats::default()
        };
        let totals = RankCounters { env_step: 8 * train_iter, ..RankCounters::default() };
        rows.add(train_iter, train_iter, &totals, &stats, own);
    }

    #[test]
    fn every_iteration_has_its_own_numbers() {
        let mut rows = Rows::default();
        (1..4).for_each(|i| add(&mut rows, i, (i != 2).then_some(i as f64)));
        let (kept, interval) = rows.take();
        assert_eq!((interval.returns.count, interval.length), (2, 20));
        // Two ranks, of which the other ended no episode: means are halves.
        let halves: Vec<f64> = kept
            .iter()
            .flat_map(|row| {
                let mut values: Vec<f64> = row.values().collect();
                values[1..].iter_mut().for_each(|value| *value /= 2.0);
                values
            })
            .collect();
        let rows = merged(&kept, &["losses/a"], &halves);
        let of = |i: usize, name: &str| rows[i].values[name];
        assert_eq!(
            rows.iter().map(|row| (row.train_iter, row.env_step)).collect::<Vec<_>>(),
            [(1, 8), (2, 16), (3, 24)]
        );
        assert_eq!((of(0, "charts/episodic_return"), of(2, "charts/episodic_length")), (1.0, 10.0));
        assert!(of(1, "charts/episodic_return").is_nan() && of(1, "losses/a") == 2.0);
    }

    #[test]
    fn rows_1_of_a_fast_loop_a_share_is_kept_and_no_episode_is_lost() {
        let mut rows = Rows::default();
        (1..=1000).for_each(|i| add(&mut rows, i, Some(1.0)));
        let (kept, interval) = rows.take();
        assert!(kept.len() > MOST / 4 && kept.len() <= MOST, "{}", kept.len());
        assert_eq!(interval.returns.count, 1000);
        let numbers: Vec<u64> = kept.iter().map(|row| row.known.train_iter).collect();
        assert!(numbers.iter().all(|number| number.is_multiple_of(16)), "{numbers:?}");
        let counted: f64 = kept.iter().map(|row| row.episodes[1]).sum();
        assert_eq!(counted + rows.open[1], 1000.0);
    }
}
