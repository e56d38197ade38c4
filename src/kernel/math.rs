//! Exponential, logarithm and hyperbolic tangent without calls or branches, so that loops vectorize.
//!
//! Error bounds, against f64 over the stated ranges (tests): [`exp`] 1.2e-7 relative on [-87, 88]; [`ln`]
//! 1.8e-7 relative to max(|ln x|, 0.1) on normal positive numbers; [`tanh`] 3.2e-7 relative everywhere. The
//! method is the usual one: reduction to a small interval and a polynomial (Cody and Waite 1980), or of two
//! for tanh; coefficients are Taylor's, or for tanh a weighted least-squares fit on Chebyshev nodes.

use super::isa::on_every_isa;

/// Adding and subtracting 1.5 * 2^23 rounds to an integer.
const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts; the first has few bits, so that its products with small integers are exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// A polynomial, highest power first.
#[inline(always)]
fn horner<const N: usize>(x: f32, coefficients: &[f32; N]) -> f32 {
    let mut sum = coefficients[0];
    for coefficient in &coefficients[1..] {
        sum = x.mul_add(sum, *coefficient);
    }
    sum
}

/// e^x; x below -87 counts as -87, x above 88 as 88. NaN stays NaN.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // NaN passes through both comparisons.
    let x = if x < -87.0 { -87.0 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    let n = x.mul_add(std::f32::consts::LOG2_E, ROUND) - ROUND;
    let r = n.mul_add(-LN2_HIGH, x);
    let r = n.mul_add(-LN2_LOW, r);
    // Taylor to the seventh power: |r| <= ln 2 / 2, so what is left out is below 1e-8.
    let taylor = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    horner(r, &taylor) * power_of_two(n)
}

/// 2^n for an integral n from -126 to 127; anything finite for NaN.
#[inline(always)]
fn power_of_two(n: f32) -> f32 {
    // The bits of `n + ROUND` count up with n: no conversion, which would have to saturate.
    let bits = (n + ROUND).to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127);
    f32::from_bits((bits & 0xff) << 23)
}

/// Natural logarithm of a normal positive number; smaller ones count as the smallest normal one.
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    let x = if x < f32::MIN_POSITIVE { f32::MIN_POSITIVE } else { x };
    // x = m 2^e with m in [sqrt(1/2), sqrt 2).
    const OFFSET: u32 = 0x3f35_04f3;
    let shifted = x.to_bits().wrapping_sub(OFFSET);
    let e = (shifted as i32 >> 23) as f32;
    let m = f32::from_bits((shifted & 0x007f_ffff).wrapping_add(OFFSET));
    // ln m = 2 artanh(s), s = (m - 1) / (m + 1), |s| <= 0.1716: the series to s^9 leaves out less than 1e-9.
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let series = horner(z, &[2.0 / 9.0, 2.0 / 7.0, 2.0 / 5.0, 2.0 / 3.0]);
    let tail = (s * z).mul_add(series, e * LN2_LOW);
    e.mul_add(LN2_HIGH, s.mul_add(2.0, tail))
}

/// Hyperbolic tangent: x p(x^2) / q(x^2) up to 9, from where it is 1 to f32. NaN stays NaN.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let x = if x > 9.0 { 9.0 } else { x };
    let x = if x < -9.0 { -9.0 } else { x };
    let z = x * x;
    let p = horner(z, &[1.335_318_4e-8, 2.060_803_1e-5, 3.495_525_8e-3, 0.133_809_75, 1.0]);
    let q = horner(z, &[7.775_957e-7, 3.285_531_7e-4, 2.587_674_7e-2, 0.467_142_9, 1.0]);
    let y = x * p / q;
    // Rounding may pass 1 by a unit in the last place.
    let y = if y > 1.0 { 1.0 } else { y };
    if y < -1.0 { -1.0 } else { y }
}

on_every_isa! {
    /// [`tanh`] of every element, in place.
    pub fn tanh_all(values: &mut [f32]) {
        for value in values {
            *value = tanh(*value);
        }
    }
}

on_every_isa! {
    /// The gradient before tanh from that after it: `gradient * (1 - output^2)`, in place.
    pub(crate) fn tanh_back(gradient: &mut [f32], outputs: &[f32]) {
        for (g, y) in gradient.iter_mut().zip(outputs) {
            *g *= y.mul_add(-y, 1.0);
        }
    }
}

on_every_isa! {
    /// max(x, 0) of every element, in place.
    pub(crate) fn relu_all(values: &mut [f32]) {
        for value in values {
            *value = if *value > 0.0 { *value } else { 0.0 };
        }
    }
}

on_every_isa! {
    /// The gradient before ReLU from that after it, in place; 0 where the output is 0, as PyTorch has it.
    pub(crate) fn relu_back(gradient: &mut [f32], outputs: &[f32]) {
        for (g, y) in gradient.iter_mut().zip(outputs) {
            *g = if *y > 0.0 { *g } else { 0.0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::isa::Isa;
    use super::*;

    /// Numbers from `low` to `high`, evenly.
    fn range(low: f32, high: f32) -> impl Iterator<Item = f32> {
        (0..=400_000).map(move |i| low + (high - low) * (i as f32 / 400_000.0))
    }

    #[test]
    fn errors_are_within_the_stated_bounds() {
        for x in range(-87.0, 88.0).chain(range(-1.0, 1.0)) {
            let expected = f64::from(x).exp();
            assert!((f64::from(exp(x)) - expected).abs() <= 1.2e-7 * expected, "exp {x}");
        }
        for x in range(1e-3, 4.0).chain(range(1.0, 1e6)).chain([f32::MIN_POSITIVE, f32::MAX, 1e-30]) {
            let expected = f64::from(x).ln();
            assert!(
                (f64::from(ln(x)) - expected).abs() <= 1.8e-7 * expected.abs().max(0.1),
                "ln {x}: {}",
                ln(x)
            );
        }
        for x in range(-12.0, 12.0).chain(range(-0.01, 0.01)).chain([1e-30, f32::MAX]) {
            let expected = f64::from(x).tanh();
            assert!(
                (f64::from(tanh(x)) - expected).abs() <= 3.2e-7 * expected.abs(),
                "tanh {x}: {}",
                tanh(x)
            );
        }
    }

    #[test]
    fn exp_ln_tanh_handle_limits_and_nan() {
        assert_eq!((tanh(f32::INFINITY), tanh(f32::NEG_INFINITY), tanh(0.0)), (1.0, -1.0, 0.0));
        assert!(exp(f32::NEG_INFINITY) >= 0.0 && exp(f32::NEG_INFINITY) < 2e-38 && exp(1e9).is_finite());
        assert_eq!((exp(0.0), ln(1.0)), (1.0, 0.0));
        assert!(tanh(f32::NAN).is_nan() && exp(f32::NAN).is_nan());
        assert!(ln(0.0) < -87.0 && ln(-1.0) < -87.0);
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let values: Vec<f32> = range(-10.0, 10.0).step_by(997).collect();
        let run = |isa| {
            let mut values = values.clone();
            tanh_all(isa, &mut values);
            let mut gradient = vec![0.7; values.len()];
            tanh_back(isa, &mut gradient, &values);
            relu_all(isa, &mut values);
            relu_back(isa, &mut gradient, &values);
            [values, gradient].concat().iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        let all: Vec<_> = Isa::all().into_iter().map(run).collect();
        assert!(all.iter().all(|bits| *bits == all[0]));
    }
}
