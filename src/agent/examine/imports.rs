//! Packages that a Python script imports at its top.

/// Most names that are looked for.
const MOST: usize = 64;

/// Names of the packages that a script imports without condition: lines that begin with `import` or `from`.
pub fn imports_of(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut add = |module: &str| {
        let name = module.trim().split(['.', ' ']).next().unwrap_or_default();
        let plain = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
        if plain && found.len() < MOST && !found.iter().any(|known| known == name) {
            found.push(name.to_owned());
        }
    };
    for line in text.lines() {
        if let Some(list) = line.strip_prefix("import ") {
            list.split('#').next().unwrap_or_default().split(',').for_each(&mut add);
        } else if let Some(rest) = line.strip_prefix("from ")
            && let Some((module, _)) = rest.split_once(" import")
        {
            // A leading dot is a neighbour.
            add(module);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_at_the_top_are_found_and_nothing_else() {
        let text = "import os, sys  # x\nimport numpy as np\nfrom torch.nn import Linear\nfrom . import me\n\
                    from .you import x\ntry:\n    import wandb\nexcept ImportError: pass\nimport torch.optim as o\n\
                    text = 'import nothing'\nimported = 1\n";
        assert_eq!(imports_of(text), ["os", "sys", "numpy", "torch"]);
    }
}
