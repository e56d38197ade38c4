//! The corridor of grid.c in Rust: `rustc -O --crate-type cdylib -o grid.so grid.rs`.

use std::ffi::{c_char, c_int, c_void};
use std::slice::{from_raw_parts, from_raw_parts_mut};

const LENGTH: i32 = 10;
const LIMIT: i32 = 100;

#[repr(C)]
pub struct Spec {
    version: u32,
    observation_type: u32,
    observation_dims: u32,
    actions: u32,
    observation_shape: [u64; 4],
    action_len: u64,
    low: *const f32,
    high: *const f32,
    state_bytes: u64,
}

#[repr(C)]
pub struct Outcome {
    observations: *mut f32,
    final_observations: *mut f32,
    rewards: *mut f64,
    terminated: *mut u8,
    truncated: *mut u8,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Walker {
    random: u64,
    place: i32,
    steps: i32,
}

impl Walker {
    fn draw(&mut self) -> u32 {
        self.random = self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.random >> 33) as u32
    }

    fn observation(&self) -> [f32; 2] {
        [self.place as f32 / LENGTH as f32, self.steps as f32 / LIMIT as f32]
    }
}

type Batch = Vec<Walker>;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rankdeck_env_describe(_options: *const c_char, spec: *mut Spec) -> c_int {
    let (low, high) = (std::ptr::null(), std::ptr::null());
    let state_bytes = size_of::<Walker>() as u64;
    let observation_shape = [2, 0, 0, 0];
    let made = Spec {
        version: 1,
        observation_type: 0,
        observation_dims: 1,
        actions: 2,
        observation_shape,
        action_len: 0,
        low,
        high,
        state_bytes,
    };
    unsafe { spec.write(made) };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn rankdeck_env_create(_options: *const c_char, count: u32) -> *mut Batch {
    Box::into_raw(Box::new(vec![Walker::default(); count as usize]))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rankdeck_env_reset(
    batch: *mut Batch,
    seeds: *const u64,
    observations: *mut [f32; 2],
) -> c_int {
    let batch = unsafe { &mut *batch };
    let (seeds, rows) =
        unsafe { (from_raw_parts(seeds, batch.len()), from_raw_parts_mut(observations, batch.len())) };
    for ((walker, seed), row) in batch.iter_mut().zip(seeds).zip(rows) {
        *walker = Walker { random: *seed, ..Walker::default() };
        *row = walker.observation();
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rankdeck_env_step(
    batch: *mut Batch,
    actions: *const i64,
    out: *mut Outcome,
) -> c_int {
    let (batch, out) = unsafe { (&mut *batch, &mut *out) };
    for (i, walker) in batch.iter_mut().enumerate() {
        let mut right = unsafe { *actions.add(i) } == 1;
        if walker.draw() % 10 == 0 {
            right = !right;
        }
        walker.place = if right { walker.place + 1 } else { (walker.place - 1).max(0) };
        walker.steps += 1;
        let ended = walker.place == LENGTH;
        let late = !ended && walker.steps == LIMIT;
        unsafe {
            *out.terminated.add(i) = ended.into();
            *out.truncated.add(i) = late.into();
            *out.rewards.add(i) = if ended { 1.0 } else { -0.01 };
            if ended || late {
                out.final_observations.cast::<[f32; 2]>().add(i).write(walker.observation());
                (walker.place, walker.steps) = (0, 0);
            }
            out.observations.cast::<[f32; 2]>().add(i).write(walker.observation());
        }
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rankdeck_env_save(batch: *mut Batch, states: *mut c_void) -> c_int {
    let batch = unsafe { &*batch };
    unsafe { states.cast::<Walker>().copy_from_nonoverlapping(batch.as_ptr(), batch.len()) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rankdeck_env_restore(
    batch: *mut Batch,
    states: *const c_void,
    observations: *mut [f32; 2],
) -> c_int {
    let batch = unsafe { &mut *batch };
    for (i, walker) in batch.iter_mut().enumerate() {
        *walker = unsafe { states.cast::<Walker>().add(i).read_unaligned() };
        unsafe { observations.add(i).write(walker.observation()) };
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rankdeck_env_destroy(batch: *mut Batch) {
    drop(unsafe { Box::from_raw(batch) });
}
