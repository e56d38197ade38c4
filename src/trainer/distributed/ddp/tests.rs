//! One rank alone: gradients stay in the flat buffer, are clipped as PyTorch does, and keep their dtypes.

use super::super::settings::{BackendKind, GroupSettings};
use super::*;
use crate::page::Page;
use rankdeck_proto::status_page::Writer;
use std::time::Duration;

fn alone() -> ProcessGroup {
    let settings = GroupSettings {
        rank: 0,
        world_size: 1,
        local_rank: 0,
        master_addr: String::new(),
        master_port: 0,
        backend: BackendKind::Tcp,
        timeout: Duration::from_secs(1),
        interface: None,
        generation: 0,
        secret: None,
        device: Device::Cpu,
    };
    ProcessGroup::connect(&settings, Page::new(Writer::anonymous(0, 0).unwrap())).unwrap()
}

fn parameter(values: &[f32]) -> Tensor {
    Tensor::from_slice(values).set_requires_grad(true)
}

fn named(tensors: &[&Tensor]) -> Vec<(String, Tensor)> {
    tensors.iter().enumerate().map(|(i, tensor)| (i.to_string(), tensor.shallow_clone())).collect()
}

fn gradient(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor.grad()).unwrap()
}

/// As on a GPU: gradients that are put in place in one pass are those that autograd adds to zeros.
#[test]
fn gradients_in_one_pass_are_the_same_bit_by_bit() {
    let seen = Tensor::from_slice(&[0.3f32, -1.7, 2.5, 0.1]).view([2, 2]);
    let make = || [parameter(&[0.5, -0.25, 1.5, 2.0]), parameter(&[0.125, -3.0]), parameter(&[7.0])];
    let loss = |[weights, biases, _]: &[Tensor; 3]| {
        // A transposed weight has a gradient of another layout; the last parameter is not used.
        let out = seen.matmul(&weights.view([2, 2]).tr()) + biases;
        (out.sin() * &seen).sum(Kind::Float)
    };
    let group = alone();
    let (ours, theirs) = (make(), make());
    let mut one = Ddp::new(named(&ours.each_ref()), Vec::new(), &group, 1024).unwrap();
    let mut other = Ddp::new(named(&theirs.each_ref()), Vec::new(), &group, 1024).unwrap();
    for _ in 0..2 {
        // The second time, there is something to replace, and somebody has taken it away.
        one.flats[0].take(&loss(&ours)).unwrap();
        other.differentiate(&loss(&theirs)).unwrap();
        let bits =
            |all: &[Tensor; 3]| -> Vec<u32> { all.iter().flat_map(gradient).map(f32::to_bits).collect() };
        assert_eq!(bits(&ours), bits(&theirs));
        assert!(bits(&ours).iter().any(|bits| *bits != 0));
        ffi::clear_grad(&mut one.flats[0].slots[0].parameter).unwrap();
    }
    one.flats[0].take(&loss(&ours)).unwrap();
    one.reduce(&group).unwrap();
    assert_eq!((one.replaced(), gradient(&ours[0])), (0, gradient(&theirs[0])), "they are views again");
}

/// DDP-4.
#[test]
fn a_gradient_that_was_replaced_is_taken_in() {
    let (group, mut a) = (alone(), parameter(&[1.0, 2.0]));
    let mut ddp = Ddp::new(named(&[&a]), Vec::new(), &group, 1024).unwrap();
    ffi::set_grad(&mut a, &mut Tensor::from_slice(&[8.0f32, 9.0])).unwrap();
    ddp.reduce(&group).unwrap();
    assert_eq!((ddp.replaced(), gradient(&a)), (1, vec![8.0, 9.0]));
    assert!((ddp.clip_grad_norm(1e9).double_value(&[]) - (64.0f64 + 81.0).sqrt()).abs() < 1e-6);
    ddp.zero_grad();
    assert_eq!(gradient(&a), [0.0, 0.0]);
    (&a * 3.0).sum(Kind::Float).backward();
    ddp.reduce(&group).unwrap();
    assert_eq!((ddp.replaced(), gradient(&a)), (1, vec![3.0, 3.0]));
}

#[test]
fn clipping_follows_pytorch() {
    let (group, a, b) = (alone(), parameter(&[0.0]), parameter(&[0.0]));
    let mut ddp = Ddp::new(named(&[&a, &b]), Vec::new(), &group, 4).unwrap();
    (&a * 3.0 + &b * 4.0).sum(Kind::Float).backward();
    assert_eq!(ddp.clip_grad_norm(10.0).double_value(&[]), 5.0);
    assert_eq!((gradient(&a), gradient(&b)), (vec![3.0], vec![4.0]));
    assert_eq!(ddp.clip_grad_norm(0.5).double_value(&[]), 5.0);
    let scale = 0.5 / (5.0 + CLIP_EPSILON);
    assert!((f64::from(gradient(&b)[0]) - 4.0 * scale).abs() < 1e-7);
    assert!(ddp.clip_grad_norm(1.0).double_value(&[]) <= 0.5);
}

#[test]
fn buckets_hold_whole_parameters_in_order() {
    let (group, a, b, c) = (alone(), parameter(&[0.0; 3]), parameter(&[0.0; 3]), parameter(&[0.0; 9]));
    let lengths = |bytes| {
        let ddp = Ddp::new(named(&[&a, &b, &c]), Vec::new(), &group, bytes).unwrap();
        assert_eq!(ddp.gradient_count(), 15);
        ddp.flats[0].buckets.iter().map(Tensor::numel).collect::<Vec<_>>()
    };
    assert_eq!(lengths(1 << 20), [15]);
    assert_eq!(lengths(24), [6, 9]);
    assert_eq!(lengths(0), [3, 3, 9]);
}

#[test]
fn the_flat_gradients_are_the_parameters_gradients() {
    let (group, a, b) = (alone(), parameter(&[1.0, 2.0]), parameter(&[3.0]));
    let mut ddp = Ddp::new(named(&[&a, &b]), Vec::new(), &group, 4).unwrap();
    (&a * 5.0).sum(Kind::Float).backward();
    // SAFETY: no tensor operation runs before the last use of `flat`.
    let flat = unsafe { ddp.flat_gradients() }.unwrap();
    assert_eq!(flat, [5.0, 5.0, 0.0]);
    flat[2] = 7.0;
    ddp.reduce(&group).unwrap();
    assert_eq!((gradient(&b), ddp.replaced()), (vec![7.0], 0));
    let double = Tensor::from_slice(&[2.0f64]).set_requires_grad(true);
    let mut mixed = Ddp::new(named(&[&a, &double]), Vec::new(), &group, 4).unwrap();
    // SAFETY: there is no slice.
    assert!(unsafe { mixed.flat_gradients() }.is_none());
}

#[test]
fn several_dtypes_and_frozen_parameters_live_together() {
    let group = alone();
    let (a, frozen) = (parameter(&[1.0]), Tensor::from_slice(&[5.0f32]));
    let b = Tensor::from_slice(&[2.0f64]).set_requires_grad(true);
    let flags = Tensor::from_slice(&[true, false, true]);
    let mut ddp = Ddp::new(named(&[&a, &b, &frozen]), vec![("flags".into(), flags)], &group, 1024).unwrap();
    assert_eq!((ddp.bucket_count(), ddp.gradient_count()), (2, 2));
    (a.square().to_kind(Kind::Double) + b.square()).sum(Kind::Double).backward();
    ddp.reduce(&group).unwrap();
    assert_eq!(ddp.clip_grad_norm(1e9).double_value(&[]), (4.0f64 + 16.0).sqrt());
    let print = ddp.fingerprint();
    assert_eq!(ddp.compare(&group).unwrap(), [print]);
    let _ = no_grad(|| frozen.shallow_clone().fill_(6.0));
    assert_ne!(ddp.fingerprint(), print, "frozen parameters count too");
}
