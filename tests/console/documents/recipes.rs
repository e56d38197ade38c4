//! The recipes of CONTRIBUTING.md: what they ask for is there for everything that was added by them, and an
//! environment that is added by their text in a copy of the repository compiles and is known.

use super::{files, read, repository};
use rankdeck_types::experiment::{BUILTIN_ENVS, Learn};
use rankdeck_types::schema::{KeyType, ValueKind};
use std::path::Path;
use std::process::Command;

/// The steps of a recipe.
fn recipe(title: &str) -> String {
    let text = read("CONTRIBUTING.md");
    let (_, rest) = text.split_once(&format!("\n### {title}\n")).unwrap();
    rest.split("\n### ").next().unwrap().to_owned()
}

/// The names of all algorithms.
fn algorithms() -> Vec<&'static str> {
    match Learn::KIND {
        ValueKind::Tagged { variants, .. } => variants.iter().map(|variant| variant.word).collect(),
        _ => panic!("`[learn]` has no variants"),
    }
}

#[test]
fn algorithm_has_everything_of_its_recipe() {
    let steps = recipe("An algorithm");
    let configs: Vec<String> =
        files(&["configs"], ".toml").iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let bench = read("benches/learning.py");
    let mut missing = Vec::new();
    for name in algorithms() {
        let uses = |text: &str| {
            [format!("algorithm = \"{name}\""), format!("algorithm = '{name}'"), format!("'{name}'\\n")]
                .iter()
                .any(|form| text.contains(form))
        };
        let item = configs.iter().filter(|text| uses(text)).any(|text| {
            let config: toml::Table = toml::from_str(text).unwrap();
            let run = config["run"].get("name").and_then(toml::Value::as_str).unwrap_or_default();
            bench.contains(&format!("\"{run}\""))
        });
        let role = format!("fn {name}(me: &Me)");
        for (path, there) in [
            (
                format!("src/trainer/algo/{name}.rs"),
                repository().join(format!("src/trainer/algo/{name}.rs")).is_file(),
            ),
            ("configs/".into(), configs.iter().any(|text| uses(text))),
            (
                "tests/configs/valid/".into(),
                files(&["tests/configs/valid"], ".toml")
                    .iter()
                    .any(|path| uses(&std::fs::read_to_string(path).unwrap())),
            ),
            ("docs/trainer.md".into(), read("docs/trainer.md").contains(&name.to_uppercase())),
            (
                "src/cli/export_policy.py".into(),
                read("src/cli/export_policy.py").contains(&name.to_uppercase()),
            ),
            (
                "tests/library/equality.rs".into(),
                uses(&read("tests/library/equality.rs"))
                    || read("tests/library/distributed/off_policy.rs").contains(&role),
            ),
            ("benches/learning.py".into(), item),
        ] {
            let step = path.replace(&format!("/{name}."), "/NAME.");
            assert!(steps.contains(step.as_str()), "the recipe does not name {step}");
            if !there {
                missing.push(format!("{name}: {path}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn builtin_environment_has_everything_of_its_recipe() {
    let (recorded, rows) = (read("tests/data/classic.json"), read("docs/trainer.md"));
    for env in BUILTIN_ENVS {
        assert!(recorded.contains(&format!("\"{}\"", env.id)), "{} is not recorded", env.id);
        assert!(rows.contains(&format!("`{}`", env.id)), "docs/trainer.md does not list {}", env.id);
    }
}

/// bsuite's Catch (Osband et al. 2020), as the steps describe it.
const CATCH: &str = "\
//! bsuite's Catch: a ball falls down a board of 10 rows and 5 columns, and a paddle must be below it.
use super::{ClassicTask, TaskStep};
use crate::ActionSpace;
use rankdeck_kernel::numpy_random::Generator;
#[derive(Debug, Clone)]
pub(super) struct Catch {
    ball: [usize; 2],
    paddle: usize,
}
impl ClassicTask for Catch {
    type Action = i64;
    const OBSERVATION: usize = 50;
    const WORDS: usize = 3;
    fn actions() -> ActionSpace {
        ActionSpace::Discrete { n: 3 }
    }
    fn blank() -> Catch {
        Catch { ball: [0, 0], paddle: 2 }
    }
    fn reset(&mut self, random: &mut Generator) {
        *self = Catch { ball: [0, random.below(5) as usize], paddle: 2 };
    }
    fn step(&mut self, action: i64) -> TaskStep {
        self.paddle = (self.paddle as i64 + action - 1).clamp(0, 4) as usize;
        self.ball[0] += 1;
        let terminated = self.ball[0] == 9;
        let reward = if !terminated { 0.0 } else if self.ball[1] == self.paddle { 1.0 } else { -1.0 };
        TaskStep { reward, terminated }
    }
    fn observe(&self, observation: &mut [f32]) {
        observation.fill(0.0);
        observation[self.ball[0] * 5 + self.ball[1]] = 1.0;
        observation[45 + self.paddle] = 1.0;
    }
    fn save(&self, words: &mut Vec<u64>) {
        words.extend([self.ball[0] as u64, self.ball[1] as u64, self.paddle as u64]);
    }
    fn restore(&mut self, words: &[u64]) {
        *self = Catch { ball: [words[0] as usize, words[1] as usize], paddle: words[2] as usize };
    }
}
";

/// Copies the files of the repository that git knows.
fn copy_to(folder: &Path) -> bool {
    let listed = Command::new("git").arg("-C").arg(repository()).args(["ls-files", "-z"]).output();
    let Ok(listed) = listed else { return false };
    for name in String::from_utf8_lossy(&listed.stdout).split('\0').filter(|name| !name.is_empty()) {
        let (from, to) = (repository().join(name), folder.join(name));
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        if from.is_file() {
            std::fs::copy(from, to).unwrap();
        }
    }
    listed.status.success() && folder.join("Cargo.toml").is_file()
}

/// Steps 1 to 3 of the recipe, each in the file that it names.
#[test]
fn environment_added_by_its_recipe_compiles_in_a_copy() {
    let steps = recipe("An RL environment");
    let folder = tempfile::tempdir().unwrap();
    if !copy_to(folder.path()) {
        return rankdeck_testkit::skipped("no git checkout to copy");
    }
    let insert = |path: &str, before: &str, line: &str| {
        assert!(steps.contains(&format!("`{path}`")), "the recipe does not name {path}");
        let at = folder.path().join(path);
        let text = std::fs::read_to_string(&at).unwrap();
        assert!(text.contains(before), "{path} has no {before}");
        std::fs::write(at, text.replacen(before, &format!("{line}{before}"), 1)).unwrap();
    };
    assert!(steps.contains("`src/envs/classic/NAME.rs`"));
    std::fs::write(folder.path().join("src/envs/classic/catch.rs"), CATCH).unwrap();
    let classic = "src/envs/classic/mod.rs";
    insert(classic, "pub mod cartpole;\n", "mod catch;\n");
    insert(classic, "use cartpole::{", "use catch::Catch;\n");
    let row = "    ClassicEnv::of::<Constant>";
    insert(classic, row, "    ClassicEnv::of::<Catch>(\"Catch-v0\", 10),\n");
    let end = "];\n\n/// Returns the built-in environment of this id.";
    let known = "    BuiltinEnv { id: \"Catch-v0\", actions: ActionKind::Discrete },\n";
    insert("src/types/experiment.rs", end, known);
    // The dependencies are those that this test was built with.
    let target = std::env::current_exe().unwrap();
    let target = target.ancestors().find(|folder| folder.ends_with("deps")).unwrap();
    let target = target.parent().and_then(Path::parent).unwrap();
    let checked = Command::new("cargo")
        .args(["test", "--offline", "--locked", "--quiet", "-p", "rankdeck-envs", "--lib", "--", "classic::"])
        .current_dir(folder.path())
        .env("CARGO_TARGET_DIR", target.join("recipes"))
        .output();
    match checked {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(_) => rankdeck_testkit::skipped("no cargo"),
    }
}
