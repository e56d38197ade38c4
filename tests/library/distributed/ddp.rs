//! Data-parallel training equals training alone.

use super::harness::{Me, World, error_value};
use rankdeck_trainer::distributed::{Averaging, Ddp, GradientPart};
use serde_json::{Value, json};
use std::time::Duration;
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Tensor};

const ROWS: i64 = 64;

fn numbers(tensors: impl Iterator<Item = Tensor>) -> Vec<f64> {
    tensors
        .flat_map(|tensor| Vec::<f64>::try_from(tensor.to_kind(Kind::Double).flatten(0, -1)).unwrap())
        .collect()
}

/// The names are sorted so that all ranks list them alike.
fn parameters(store: &nn::VarStore) -> Vec<(String, Tensor)> {
    let mut named: Vec<_> = store.variables().into_iter().collect();
    named.sort_by(|a, b| a.0.cmp(&b.0));
    named
}

fn network(root: &nn::Path<'_>) -> impl Module + use<> {
    nn::seq().add(nn::linear(root / "one", 6, 16, Default::default())).add_fn(|x| x.tanh()).add(nn::linear(
        root / "two",
        16,
        2,
        Default::default(),
    ))
}

/// Adam updates on this rank's share of the rows of fixed batches, ten by default.
pub fn rank(me: &Me) -> Value {
    let group = me.connect();
    let synchronise = std::env::var("DIST_UNSYNCHRONISED").is_err();
    let foreign_zero = std::env::var("DIST_FOREIGN_ZERO").is_ok();
    // Only rank 0 starts from the weights that all must have.
    tch::manual_seed(if me.rank == 0 { 7 } else { 100 + i64::from(me.rank) });
    let mut store = nn::VarStore::new(Device::Cpu);
    let net = network(&store.root());
    store.set_device(me.device());
    let statistics = Tensor::from_slice(&[i64::from(me.rank) + 5, 1]);
    let updates = std::env::var("DIST_UPDATES").ok().and_then(|text| text.parse().ok()).unwrap_or(10);
    let mut optimizer = nn::Adam::default().build(&store, 1e-2).unwrap();
    let buckets = std::env::var("DIST_BUCKET").ok().and_then(|text| text.parse().ok()).unwrap_or(25 << 20);
    let mut ddp = Ddp::new(
        parameters(&store),
        vec![("statistics".into(), statistics.shallow_clone())],
        &group,
        buckets,
    )
    .unwrap();
    assert_eq!(statistics.int64_value(&[0]), 5, "buffers come from rank 0");
    let parts: Vec<GradientPart> = match std::env::var("DIST_CUT").map(|text| text.parse().unwrap()) {
        Ok(parameter) if ddp.split_at(parameter) => vec![GradientPart::Late, GradientPart::Early],
        _ => vec![GradientPart::Whole],
    };
    let start = ddp.compare(&group).unwrap();
    assert!(start.iter().all(|print| *print == start[0]), "equal before the first update: {start:x?}");

    tch::manual_seed(1234);
    let data: Vec<(Tensor, Tensor)> = (0..updates)
        .map(|_| {
            let x = Tensor::randn([ROWS, 6], (Kind::Float, Device::Cpu));
            let y = x.narrow(1, 0, 2).sin() * 2.0;
            (x.to_device(me.device()), y.to_device(me.device()))
        })
        .collect();
    let share = ROWS / i64::from(me.world_size);
    let mut norms = Vec::new();
    for (x, y) in &data {
        let rows = |t: &Tensor| t.narrow(0, share * i64::from(me.rank), share);
        let loss = (net.forward(&rows(x)) - rows(y)).square().mean(Kind::Float);
        if foreign_zero {
            optimizer.zero_grad()
        } else {
            ddp.zero_grad()
        }
        loss.backward();
        for part in parts.iter().filter(|_| synchronise) {
            ddp.reduce_part(*part, &group).unwrap();
        }
        norms.push(ddp.clip_grad_norm(0.5).double_value(&[]));
        optimizer.step();
    }
    let result = json!({
        "parameters": numbers(parameters(&store).into_iter().map(|(_, tensor)| tensor.detach())),
        "fingerprints": ddp.compare(&group).unwrap(),
        "norms": norms,
        "replaced": ddp.replaced(),
        "buckets": ddp.bucket_count(),
        "parts": parts.len(),
    });
    group.destroy(Duration::from_secs(30)).unwrap();
    result
}

/// Rank 1 has one more layer.
pub fn layout(me: &Me) -> Value {
    let group = me.connect();
    let store = nn::VarStore::new(Device::Cpu);
    let _net = network(&store.root());
    if me.rank == 1 {
        let _more = nn::linear(store.root() / "three", 2, 2, Default::default());
    }
    let error = Ddp::new(parameters(&store), Vec::new(), &group, 1024).err().unwrap();
    error_value(&error)
}

/// One rank copies a value of the same size for another purpose.
pub fn mixed_up(me: &Me) -> Value {
    let group = me.connect();
    let store = nn::VarStore::new(Device::Cpu);
    let _net = network(&store.root());
    let ddp = Ddp::new(parameters(&store), Vec::new(), &group, 1024).unwrap();
    let tag = if me.rank == 1 { "stop" } else { "eval" };
    let mixed = group.broadcast(&mut Tensor::ones([1], (Kind::Float, Device::Cpu)), 0, tag);
    error_value(&mixed.and_then(|()| ddp.compare(&group)).unwrap_err())
}

/// DIST-5: rank 0 leaves out one parameter, rank 1 the other.
pub fn unused(me: &Me) -> Value {
    let group = me.connect();
    let parameter = |value: f32| Tensor::from_slice(&[value]).set_requires_grad(true);
    let (first, second) = (parameter(2.0), parameter(3.0));
    let named =
        vec![("first".to_owned(), first.shallow_clone()), ("second".to_owned(), second.shallow_clone())];
    let mut ddp = Ddp::new(named, Vec::new(), &group, 1).unwrap();
    let mut gradients = Vec::new();
    for _ in 0..2 {
        ddp.zero_grad();
        let used = if me.rank == 0 { &first } else { &second };
        used.square().sum(Kind::Float).backward();
        ddp.reduce(&group).unwrap();
        gradients.push([first.grad().double_value(&[0]), second.grad().double_value(&[0])]);
    }
    group.destroy(Duration::from_secs(30)).unwrap();
    json!({ "gradients": gradients, "replaced": ddp.replaced() })
}

/// Three parameters: all ranks use the first, rank 0 alone the second, none the third.
pub fn contributors(me: &Me) -> Value {
    let group = me.connect();
    let averaging = match std::env::var("DIST_AVERAGING").as_deref() {
        Ok("contributors") => Averaging::Contributors,
        _ => Averaging::World,
    };
    let parameters = [2.0f32, 3.0, 5.0].map(|value| Tensor::from_slice(&[value]).set_requires_grad(true));
    let named = parameters.iter().enumerate().map(|(i, p)| (i.to_string(), p.shallow_clone())).collect();
    let buckets = if std::env::var("DIST_BUCKET").is_ok() { 1 } else { 1 << 20 };
    let mut ddp = Ddp::averaging(averaging, named, Vec::new(), &group, buckets).unwrap();
    let mut gradients = Vec::new();
    let mut entered = 0;
    for _ in 0..2 {
        ddp.zero_grad();
        (&parameters[0] * f64::from(me.rank + 1)).sum(Kind::Float).backward();
        if me.rank == 0 {
            (&parameters[1] * 7.0).sum(Kind::Float).backward();
        }
        let before = group.entered();
        ddp.reduce(&group).unwrap();
        entered = group.entered() - before;
        gradients.push(parameters.each_ref().map(|p| p.grad().double_value(&[0])));
    }
    // The norm that clips has no flags in it.
    let norm = ddp.clip_grad_norm(1e9).double_value(&[]);
    group.destroy(Duration::from_secs(30)).unwrap();
    json!({ "gradients": gradients, "collectives": entered, "norm": norm })
}

/// `no_sync`: two backward passes, one exchange.
pub fn accumulated(me: &Me) -> Value {
    let group = me.connect();
    let weight = Tensor::from_slice(&[1.0f32, 2.0]).set_requires_grad(true);
    let mut ddp = Ddp::new(vec![("w".into(), weight.shallow_clone())], Vec::new(), &group, 1024).unwrap();
    let loss = |scale: f64| ((&weight * scale).square().sum(Kind::Float)).backward();
    let before = group.entered();
    ddp.zero_grad();
    loss(f64::from(me.rank + 1));
    loss(f64::from(me.rank + 3));
    assert_eq!(group.entered(), before, "nothing is exchanged while gradients accumulate");
    ddp.reduce(&group).unwrap();
    assert_eq!(group.entered(), before + 1);
    let gradients = Vec::<f64>::try_from(weight.grad().to_kind(Kind::Double)).unwrap();
    group.destroy(Duration::from_secs(30)).unwrap();
    json!(gradients)
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

pub fn distance(a: &Value, b: &Value) -> f64 {
    let (a, b) = (floats(&a["parameters"]), floats(&b["parameters"]));
    assert_eq!(a.len(), b.len());
    a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

pub fn equal_prints(result: &Value) -> bool {
    let prints = result["fingerprints"].as_array().unwrap();
    prints.iter().all(|print| *print == prints[0])
}

#[test]
fn ranks_on_split_data_equal_one_rank_on_the_whole() {
    let alone = World::new("ddp", 1).start().results().remove(0);
    assert!(
        floats(&alone["norms"]).iter().any(|norm| *norm > 0.5),
        "clipping must happen: {}",
        alone["norms"]
    );
    for world_size in [2, 4] {
        for result in World::new("ddp", world_size).start().results() {
            let distance = distance(&alone, &result);
            assert!(distance < 1e-6, "world of {world_size}: {distance}");
            assert!(equal_prints(&result));
            assert_eq!(result["fingerprints"].as_array().unwrap().len(), world_size as usize);
            assert_eq!(result["replaced"], 0, "autograd accumulates into the flat buffer");
        }
    }
}

/// The comparison above can fail.
#[test]
fn comparison_fails_without_the_reduction() {
    let alone = World::new("ddp", 1).start().results().remove(0);
    for result in World::new("ddp", 2).env("DIST_UNSYNCHRONISED", 1).start().results() {
        assert!(distance(&alone, &result) > 1e-4);
        assert!(!equal_prints(&result), "drift must show in the fingerprints");
    }
}

#[test]
fn buckets_and_foreign_zero_grad_change_nothing() {
    let whole = World::new("ddp", 2).start().results().remove(0);
    assert_eq!(whole["buckets"], 1);
    let cut = World::new("ddp", 2).env("DIST_BUCKET", 64).start().results().remove(0);
    assert_eq!(cut["buckets"], 4);
    assert_eq!(whole["fingerprints"], cut["fingerprints"]);
    let foreign = World::new("ddp", 2).env("DIST_FOREIGN_ZERO", 1).start().results().remove(0);
    assert_eq!(whole["fingerprints"], foreign["fingerprints"]);
}

#[test]
fn ddp_5_gradients_in_two_parts_equal_those_at_once() {
    let of = |bucket: u64, cut: u64| {
        let mut results =
            World::new("ddp", 2).env("DIST_BUCKET", bucket).env("DIST_CUT", cut).start().results();
        assert!(results.iter().all(equal_prints));
        results.remove(0)
    };
    // Biases and weights of 16, 96, 2 and 32 numbers.
    let whole = World::new("ddp", 2).start().results().remove(0);
    for (bucket, cut, parts, buckets) in [
        (1 << 20, 2, 1, 1),
        (64, 0, 1, 4),
        (64, 4, 1, 4),
        (64, 2, 2, 4),
        (300, 2, 2, 3),
        (500, 1, 2, 3),
        (500, 3, 2, 2),
    ] {
        let result = of(bucket, cut);
        let found = (&result["parts"], &result["buckets"]);
        assert_eq!(found, (&json!(parts), &json!(buckets)), "bucket {bucket}, cut at {cut}");
        assert_eq!(result["fingerprints"], whole["fingerprints"], "bucket {bucket}, cut at {cut}");
    }
}

#[test]
fn differing_networks_fail_with_rank() {
    for error in World::new("layout", 2).start().results() {
        assert_eq!(error["kind"], "Mismatch");
        assert!(error["message"].as_str().unwrap().contains("rank 1"), "{error}");
    }
}

#[test]
fn mixed_up_collectives_fail_with_both_names() {
    let errors = World::new("mixed_up", 3).start().results();
    assert_eq!(errors[1]["kind"], "Mismatch");
    let message = errors[1]["message"].as_str().unwrap();
    assert!(message.contains("broadcast \"stop\"") && message.contains("broadcast \"eval\""), "{message}");
    // The others notice it too, or find that rank 1 is gone.
    assert!(errors.iter().all(|error| error["kind"].is_string()), "{errors:?}");
}

#[test]
fn unused_parameters_contribute_zeros() {
    for result in World::new("unused", 2).start().results() {
        assert_eq!(result["gradients"], json!([[2.0, 3.0], [2.0, 3.0]]));
        assert_eq!(result["replaced"], 0);
    }
}

/// Both rules of DDP-3, in as many collectives.
#[test]
fn averages_are_over_the_world_or_over_the_contributors() {
    for (buckets, collectives) in [(None, 1), (Some(1), 3)] {
        for (averaging, second) in [("world", 3.5), ("contributors", 7.0)] {
            let mut world = World::new("contributors", 2).env("DIST_AVERAGING", averaging);
            if let Some(bytes) = buckets {
                world = world.env("DIST_BUCKET", bytes);
            }
            for result in world.start().results() {
                let expected = [1.5, second, 0.0];
                assert_eq!(result["gradients"], json!([expected, expected]), "{averaging}");
                assert_eq!(result["collectives"], collectives);
                let norm = f64::sqrt(1.5 * 1.5 + second * second);
                assert!((result["norm"].as_f64().unwrap() - norm).abs() < 1e-5);
            }
        }
    }
}

#[test]
fn gradients_accumulate_without_an_exchange() {
    // d/dw (s w)^2 = 2 s^2 w; scales 1 and 3 on rank 0, 2 and 4 on rank 1; the average over both.
    let factor = (2.0 * (1.0 + 9.0) + 2.0 * (4.0 + 16.0)) / 2.0;
    for result in World::new("accumulated", 2).start().results() {
        assert_eq!(result, json!([factor, 2.0 * factor]));
    }
}
