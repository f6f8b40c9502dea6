//! Replacing a table's rules while its sets keep the elements that the packet path added.

use std::fmt::Write as _;

/// The commands that prepare a table with the rules `before` for the rules `after`: they flush all chains, and delete
/// each chain and set that `after` does not have.
///
/// `None` if the definition of a set or of a chain's hook differs: nft can change neither.
pub(crate) fn emptied(table: &str, before: &str, after: &str) -> Option<String> {
    let after = blocks(after);
    // The rules go first, because the kernel deletes no chain and no set that a rule still refers to.
    let mut commands = format!("flush table inet {table}\n");
    for Block { kind, name, definition } in blocks(before) {
        match after.iter().find(|block| (block.kind, block.name) == (kind, name)) {
            Some(block) if block.definition == definition => {}
            Some(_) => return None,
            // Writing into a String never fails.
            None => writeln!(commands, "delete {kind} inet {table} {name}").ok()?,
        }
    }
    Some(commands)
}

/// A chain or a set of a plan's ruleset.
struct Block<'text> {
    kind: &'text str,
    name: &'text str,
    /// The definition that cannot be changed: a chain's hook, or all of a set.
    definition: Vec<&'text str>,
}

fn blocks(ruleset: &str) -> Vec<Block<'_>> {
    let mut blocks: Vec<Block<'_>> = Vec::new();
    for line in ruleset.lines().map(str::trim) {
        match (line.split(' ').collect::<Vec<_>>().as_slice(), blocks.last_mut()) {
            ([kind @ ("chain" | "set"), name, "{"], _) => {
                blocks.push(Block { kind, name, definition: Vec::new() });
            }
            (_, Some(block)) if block.kind == "set" || line.starts_with("type ") => {
                block.definition.push(line)
            }
            _ => {}
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    const SET: &str = "set flows {\n\ttype ipv4_addr\n\tsize 65535\n\tflags dynamic\n}\n";
    const INPUT: &str =
        "chain input {\n\ttype filter hook input priority filter; policy accept;\n\taccept\n}\n";
    const OTHER: &str = "chain other {\n\taccept\n}\n";

    #[test]
    fn what_stays_is_emptied_of_rules_and_what_goes_is_deleted() {
        let before = [SET, INPUT, OTHER].concat();

        assert_eq!(
            emptied("x", &before, &before.replace("accept\n}", "drop\n}")).unwrap(),
            "flush table inet x\n"
        );
        assert_eq!(
            emptied("x", &before, INPUT).unwrap(),
            "flush table inet x\ndelete set inet x flows\ndelete chain inet x other\n"
        );
        assert_eq!(emptied("x", INPUT, &before).unwrap(), "flush table inet x\n");
    }

    #[test]
    fn another_definition_of_a_set_or_of_a_hook_is_none_that_nft_changes() {
        let before = [SET, INPUT].concat();

        assert_eq!(emptied("x", &before, &before.replace("ipv4_addr", "ipv6_addr")), None);
        assert_eq!(emptied("x", &before, &before.replace("priority filter;", "priority raw;")), None);
    }
}
