"""Node types that exist only in the editor."""

# Pass their input on.
REROUTES = {"Reroute", "Reroute (rgthree)"}
# Provide the value of every field that is linked to them.
PRIMITIVE = "PrimitiveNode"
# Store a value under a name, and read it elsewhere by that name. The name is their first field.
SETTERS = {"SetNode", "easy setNode"}
GETTERS = {"GetNode", "easy getNode"}
# Decoration, or switches for other nodes; the file contains the resulting state.
NOTES = {
    "Note",
    "MarkdownNote",
    "Note Plus (mtb)",
    "workflowNote",
    "Label (rgthree)",
    "Bookmark (rgthree)",
    "Fast Bypasser (rgthree)",
    "Fast Muter (rgthree)",
    "Fast Groups Bypasser (rgthree)",
    "Fast Groups Muter (rgthree)",
    "Fast Actions Button (rgthree)",
    "Mute / Bypass Relay (rgthree)",
    "Mute / Bypass Repeater (rgthree)",
    "Node Collector (rgthree)",
    "Random Unmuter (rgthree)",
}
VIRTUAL = {*REROUTES, PRIMITIVE, *SETTERS, *GETTERS, *NOTES}

# Nodes of Use Everywhere, which send a value to other nodes without a link.
PROMPTS_BROADCAST = "Prompts Everywhere"
BROADCASTS = ("Anything Everywhere", PROMPTS_BROADCAST)
# Sends its own value, and runs as a node.
SEED_BROADCAST = "Seed Everywhere"
