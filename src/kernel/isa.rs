//! Instruction sets: one source compiled for several of them, selected once at run time.
//!
//! A kernel is a plain safe Rust loop. [`on_every_isa!`] compiles it three times: for AVX-512, for AVX2 with
//! FMA, and for the baseline. The compiler vectorizes each copy for its instruction set; the only unsafe code
//! is the call of a copy after its features were found.
//!
//! Rust never fuses `a * b + c` and never reorders float sums by itself, and [`f32::mul_add`] is rounded once
//! on every machine (in software where there is no instruction: correct, but slow on x86-64 processors made
//! before 2013). So all of them give the same bits as long as the source fixes the order of sums; the tests
//! of each kernel compare them.

use std::sync::OnceLock;

/// An instruction set of this processor. Only [`Isa::all`] makes the fast ones, after detection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(IsaKind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "x86-64 only"))]
pub(super) enum IsaKind {
    Baseline,
    Avx2,
    Avx512,
}

impl Isa {
    /// The best one of this processor, detected once.
    pub fn best() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| Isa::all().last().copied().unwrap_or(Isa(IsaKind::Baseline)))
    }

    /// All of this processor, slowest first.
    pub fn all() -> Vec<Isa> {
        #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut, reason = "x86-64 only"))]
        let mut isas = vec![Isa(IsaKind::Baseline)];
        #[cfg(target_arch = "x86_64")]
        {
            let fma =
                std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma");
            if fma {
                isas.push(Isa(IsaKind::Avx2));
            }
            let wide = std::arch::is_x86_feature_detected!("avx512f")
                && std::arch::is_x86_feature_detected!("avx512vl")
                && std::arch::is_x86_feature_detected!("avx512bw")
                && std::arch::is_x86_feature_detected!("avx512dq");
            if fma && wide {
                isas.push(Isa(IsaKind::Avx512));
            }
        }
        isas
    }

    /// Its name, for reports.
    pub fn name(self) -> &'static str {
        match self.0 {
            IsaKind::Baseline => "baseline",
            IsaKind::Avx2 => "avx2",
            IsaKind::Avx512 => "avx512",
        }
    }

    pub(super) fn kind(self) -> IsaKind {
        self.0
    }
}

/// Compiles a function for every instruction set; the set becomes its first argument.
macro_rules! on_every_isa {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments, reason = "plain data for an inner loop")]
        $vis fn $name(isa: $crate::isa::Isa, $($arg: $type),*) $(-> $result)? {
            #[inline(always)]
            fn baseline($($arg: $type),*) $(-> $result)? $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $type),*) $(-> $result)? {
                baseline($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
            fn avx512($($arg: $type),*) $(-> $result)? {
                baseline($($arg),*)
            }
            match isa.kind() {
                // SAFETY: `Isa::all` makes this value only where the processor has these features.
                #[cfg(target_arch = "x86_64")]
                $crate::isa::IsaKind::Avx512 => unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::isa::IsaKind::Avx2 => unsafe { avx2($($arg),*) },
                _ => baseline($($arg),*),
            }
        }
    };
}
pub(super) use on_every_isa;
