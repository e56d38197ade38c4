use super::*;

fn array(name: &str, shape: &[i64], scale: f32) -> Array {
    let len = shape.iter().product::<i64>();
    Array { name: name.into(), shape: shape.to_vec(), values: (0..len).map(|i| scale * i as f32).collect() }
}

pub(crate) fn sample() -> Checkpoint {
    let arrays = vec![array("model.critic.0.weight", &[8, 4], 1.5), array("adam.first", &[40], -0.1)];
    let words = vec![
        Words { name: "adam.steps".into(), values: vec![272] },
        Words { name: "moments".into(), values: vec![] },
    ];
    let header = Header {
        algorithm: "ppo".into(),
        env_id: "CartPole-v1".into(),
        seed: 3,
        world_size: 2,
        num_envs: 4,
        words_per_rank: 6,
        words_per_env: 1,
        train_iter: 17,
        updates: 272,
        best: Some(123.5),
        evaluation_due: true,
        latest_returns: vec![9.5, 1.0 / 3.0],
        env_step: 8704,
        about: Description::default(),
        arrays: shapes(&arrays),
        words: counts(&words),
    };
    Checkpoint { header, arrays, words, ranks: (0..12).map(|i| u64::MAX - i).collect() }
}

#[test]
fn a_policy_says_its_returns_where_there_are_any() {
    let said = |checkpoint: &Checkpoint| String::from_utf8_lossy(&checkpoint.export().unwrap()).into_owned();
    let mut checkpoint = sample();
    let text = said(&checkpoint);
    assert!(
        text.contains("\"best_return\":\"123.5\"") && text.contains("\"return_last_100\":\"4.91"),
        "{text}"
    );
    (checkpoint.header.best, checkpoint.header.latest_returns) = (None, Vec::new());
    assert!(!said(&checkpoint).contains("return"), "{}", said(&checkpoint));
}

#[test]
fn what_is_written_is_read_back_bit_by_bit() {
    let checkpoint = sample();
    let folder = tempfile::tempdir().unwrap();
    let mut moved = (0, 0);
    let path = checkpoint
        .write(&folder.path().join("checkpoints"), "latest", |written, of| moved = (written, of))
        .unwrap();
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(moved, (bytes.len() as u64, bytes.len() as u64));
    assert_eq!(Checkpoint::decode(&bytes).unwrap(), checkpoint);
    let mut names: Vec<_> =
        std::fs::read_dir(path.parent().unwrap()).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["latest.ckpt", "latest.safetensors"], "no temporary file stays");
}

#[test]
fn checkpoint_2_any_damage_is_refused() {
    let bytes = sample().encode().unwrap();
    for at in (0..bytes.len()).step_by(41).chain([bytes.len() - 1]) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        assert!(Checkpoint::decode(&damaged).is_err(), "byte {at}");
        assert!(Checkpoint::decode(&bytes[..at]).is_err(), "cut at {at}");
    }
    let mut other = bytes.clone();
    other[8] = 9;
    assert!(Checkpoint::decode(&other).unwrap_err().contains("version 9"));
}

#[test]
fn checkpoint_2_a_header_that_lies_about_sizes_is_refused() {
    for shape in [vec![i64::MAX, i64::MAX], vec![-3], vec![5]] {
        let mut lying = sample();
        lying.arrays[0].shape = shape;
        assert!(Checkpoint::decode(&lying.encode().unwrap()).is_err());
    }
    for change in [
        |header: &mut Header| header.words_per_rank = usize::MAX,
        |header: &mut Header| header.words_per_rank = 5,
        |header: &mut Header| header.world_size = 0,
    ] {
        let mut lying = sample();
        change(&mut lying.header);
        assert!(Checkpoint::decode(&lying.encode().unwrap()).is_err());
    }
}

#[test]
fn checkpoint_2_what_differs_is_named() {
    let (checkpoint, path) = (sample(), Path::new("runs/a.ckpt"));
    let state = State { arrays: sample().arrays, words: sample().words, ..State::default() };
    checkpoint.fits(path, &state).unwrap();
    checkpoint.is_of(path, "ppo", "CartPole-v1").unwrap();
    let refused = |state: &State| {
        let error = checkpoint.fits(path, state).unwrap_err();
        assert!(error.usage && error.to_string().contains("runs/a.ckpt"), "{error}");
        error.hinted.error
    };
    let mut wider = state.clone();
    wider.arrays[0] = array("model.critic.0.weight", &[16, 4], 0.0);
    assert!(
        refused(&wider).contains("model.critic.0.weight [8, 4] there, model.critic.0.weight [16, 4] here")
    );
    let mut more = state.clone();
    more.arrays.push(array("target.0.weight", &[2], 0.0));
    assert!(refused(&more).contains("target.0.weight [2] is missing"));
    let mut fewer = state.clone();
    fewer.arrays.pop();
    assert!(refused(&fewer).contains("adam.first [40] does not belong here"));
    let mut normalising = state.clone();
    normalising.words[1].values = vec![0; 9];
    assert!(refused(&normalising).contains("moments 0 words there, moments 9 words here"));
    for (algorithm, env, key) in [("a2c", "CartPole-v1", "learn.algorithm"), ("ppo", "CartPole-v0", "env.id")]
    {
        let error = checkpoint.is_of(path, algorithm, env).unwrap_err();
        assert!(error.usage && error.hint().contains(key), "{error:?}");
    }
}
