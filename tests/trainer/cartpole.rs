//! CLASSIC-1: CartPole against Gymnasium, recorded and live.

use crate::harness::{python, repository};
use rankdeck::trainer::env::classic::Task;
use rankdeck::trainer::env::classic::cartpole::CartPole;
use rankdeck::trainer::env::numpy_random::{self, Generator};
use rankdeck::trainer::seeds::{Purpose, Seeds};
use serde_json::Value;
use std::ffi::OsStr;

fn hex(env: &CartPole) -> Vec<String> {
    let mut words = Vec::new();
    env.save(&mut words);
    words.iter().map(|word| format!("{word:016x}")).collect()
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_string()).collect()
}

/// Little-endian 32-bit digits of a decimal number, as NumPy cuts an integer seed.
fn words(decimal: &str) -> Vec<u32> {
    match decimal.parse::<u64>() {
        Ok(seed) => numpy_random::int_words(seed),
        Err(_) => {
            let mut words = vec![0_u32];
            for digit in decimal.bytes() {
                let mut carry = u64::from(digit - b'0');
                for word in &mut words {
                    let value = u64::from(*word) * 10 + carry;
                    (*word, carry) = (value as u32, value >> 32);
                }
                if carry > 0 {
                    words.push(carry as u32);
                }
            }
            words
        }
    }
}

fn decimal(words: &[u32]) -> String {
    let mut digits = vec![0_u8];
    for word in words.iter().rev() {
        let mut carry = u64::from(*word);
        for digit in &mut digits {
            let value = (u64::from(*digit) << 32) + carry;
            (*digit, carry) = ((value % 10) as u8, value / 10);
        }
        while carry > 0 {
            digits.push((carry % 10) as u8);
            carry /= 10;
        }
    }
    digits.iter().rev().map(|digit| char::from(b'0' + digit)).collect()
}

/// Plays the recorded actions and compares everything that was recorded; returns how many ends there were.
fn replay(recorded: &Value) -> usize {
    let id = recorded["id"].as_str().unwrap();
    let limit = if id == "CartPole-v0" { 200 } else { 500 };
    let mut env = CartPole::blank();
    let mut random = Generator::from_words(&words(recorded["seed"].as_str().unwrap()));
    let mut elapsed = 0;
    let mut observation = [0.0_f32; 4];
    env.reset(&mut random);
    let place = format!("{id} seed {}", recorded["seed"]);
    assert_eq!(hex(&env), strings(&recorded["first"]), "{place}: reset");
    let actions = recorded["actions"].as_str().unwrap().bytes();
    let rewards = recorded["rewards"].as_str().unwrap().bytes();
    for (index, (action, reward)) in actions.zip(rewards).enumerate() {
        let place = format!("{place} step {index}");
        let step = env.step(i64::from(action - b'0'));
        env.observe(&mut observation);
        elapsed += 1;
        assert_eq!(step.reward, f64::from(reward - b'0'), "{place}");
        if let Some(state) = recorded["states"].get(index.to_string()) {
            let seen = observation.iter().map(|x| format!("{:08x}", x.to_bits()));
            assert_eq!([hex(&env), seen.collect()].concat(), strings(state), "{place}");
        }
        let mut end = String::new();
        if step.terminated {
            end.push('T');
        }
        if elapsed == limit {
            end.push('L');
        }
        match recorded["ends"].get(index.to_string()) {
            None => assert_eq!(end, "", "{place}"),
            Some(recorded) => {
                assert_ne!(end, "", "{place}");
                elapsed = 0;
                env.reset(&mut random);
                assert_eq!([vec![end], hex(&env)].concat(), strings(recorded), "{place}");
            }
        }
    }
    recorded["ends"].as_object().unwrap().len()
}

#[test]
fn cartpole_1_recorded_gymnasium_trajectories() {
    let text = std::fs::read_to_string(repository("tests/data/cartpole.json")).unwrap();
    let recorded: Vec<Value> = serde_json::from_str(&text).unwrap();
    let ends: usize = recorded.iter().map(replay).sum();
    assert!(recorded.len() >= 5 && ends >= 12);
    // Both limits were met.
    let limits: Vec<&str> = recorded
        .iter()
        .flat_map(|r| r["ends"].as_object().unwrap().values())
        .filter_map(|end| end[0].as_str())
        .collect();
    assert_eq!(limits.iter().filter(|end| **end == "L").count(), 2);
}

#[test]
fn cartpole_1_gymnasium_itself_when_it_is_there() {
    let program = repository("tests/trainer/gymnasium_cartpole.py");
    // A seed as the trainer's streams have it: the integer with those 32-bit digits.
    let stream = decimal(&Seeds::new(77).words(Purpose::Env, 3, 0));
    for (id, seed, plan) in [
        ("CartPole-v1", "3", "random:400"),
        ("CartPole-v1", stream.as_str(), "balance:700"),
        ("CartPole-v0", "4294967296", "balance:300"),
    ] {
        let args = [program.as_os_str(), OsStr::new(id), OsStr::new(seed), OsStr::new(plan)];
        let Some(output) = python("gymnasium", &args) else { return };
        assert!(replay(&serde_json::from_str(&output).unwrap()) > 0);
    }
}

#[test]
fn a_streams_words_are_the_digits_of_its_integer() {
    let stream = Seeds::new(u64::MAX - 5).words(Purpose::Eval, 17, 0);
    assert_eq!(words(&decimal(&stream)), stream);
}
