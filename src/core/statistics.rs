//! Statistics over several seeds, as Agarwal et al. 2021 ("Deep Reinforcement Learning at the Edge of the
//! Statistical Precipice", the rliable library) advise: the interquartile mean, and a percentile bootstrap
//! around it.

/// Resamples of a bootstrap: the ends of a 95% interval are then steady to about a hundredth of its width.
const RESAMPLES: usize = 10_000;
/// Share of an interval.
const LEVEL: f64 = 0.95;
/// Most values that are resampled; of more, this many evenly spaced ones.
const VALUES: usize = 10_000;

/// The mean of the middle half, as `scipy.stats.trim_mean(values, 0.25)`; `None` without values.
pub fn interquartile_mean(values: &[f64]) -> Option<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    middle_mean(&sorted)
}

fn middle_mean(sorted: &[f64]) -> Option<f64> {
    let cut = sorted.len() / 4;
    let middle = sorted.get(cut..sorted.len() - cut).filter(|middle| !middle.is_empty())?;
    Some(middle.iter().sum::<f64>() / middle.len() as f64)
}

/// The 95% interval of the interquartile mean, from runs drawn again with replacement; `None` for fewer than
/// two. The same values give the same interval.
pub fn bootstrap_interval(values: &[f64]) -> Option<(f64, f64)> {
    let values: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    if values.len() < 2 {
        return None;
    }
    let step = values.len().div_ceil(VALUES);
    let values: Vec<f64> = values.into_iter().step_by(step).collect();
    let resamples = (RESAMPLES * 100 / values.len()).clamp(200, RESAMPLES);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut means: Vec<f64> = (0..resamples)
        .filter_map(|_| {
            let mut drawn: Vec<f64> =
                (0..values.len()).map(|_| values[below(&mut state, values.len())]).collect();
            drawn.sort_by(f64::total_cmp);
            middle_mean(&drawn)
        })
        .collect();
    means.sort_by(f64::total_cmp);
    Some((quantile(&means, (1.0 - LEVEL) / 2.0), quantile(&means, (1.0 + LEVEL) / 2.0)))
}

/// Linear between the nearest two, as NumPy's default.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = share * (sorted.len().saturating_sub(1)) as f64;
    let (low, high) = (at.floor() as usize, at.ceil() as usize);
    let (a, b) =
        (sorted.get(low).copied().unwrap_or(f64::NAN), sorted.get(high).copied().unwrap_or(f64::NAN));
    a + (b - a) * (at - at.floor())
}

/// A number below `n`, from SplitMix64 (Steele et al. 2014).
pub fn below(state: &mut u64, n: usize) -> usize {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    ((u128::from(z) * n as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interquartile_mean_matches_scipy() {
        // scipy.stats.trim_mean(x, 0.25)
        for (values, mean) in [
            (&[1.0][..], 1.0),
            (&[1.0, 3.0], 2.0),
            (&[1.0, 2.0, 9.0], 4.0),
            (&[4.0, 1.0, 2.0, 100.0], 3.0),
            (&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 90.0], 4.5),
            (&[1.0, f64::NAN, 3.0], 2.0),
        ] {
            assert_eq!(interquartile_mean(values), Some(mean), "{values:?}");
        }
        assert_eq!(interquartile_mean(&[]), None);
    }

    #[test]
    fn interval_contains_mean_and_shrinks_with_seeds() {
        assert_eq!(bootstrap_interval(&[1.0]), None);
        assert_eq!(bootstrap_interval(&[2.0; 5]), Some((2.0, 2.0)));
        let few: Vec<f64> = (0..10).map(f64::from).collect();
        let many: Vec<f64> = (0..100).map(|i| f64::from(i % 10)).collect();
        let (low, high) = bootstrap_interval(&few).unwrap();
        let (lower, higher) = bootstrap_interval(&many).unwrap();
        assert!(
            low < 4.5 && 4.5 < high && higher - lower < (high - low) / 2.0,
            "{low} {high} {lower} {higher}"
        );
        // rliable's percentile bootstrap with 50,000 resamples gives 2.3 to 6.8.
        assert!((2.0..2.7).contains(&low) && (6.4..7.2).contains(&high), "{low} {high}");
        assert_eq!(bootstrap_interval(&few), Some((low, high)));
        assert!(bootstrap_interval(&vec![1.0; 100_000]).is_some());
    }
}
