"""Node types that exist only in the editor."""

# Nodes that pass on their input.
REROUTES = {"Reroute", "Reroute (rgthree)"}
# Provides the value of every field that is linked to it.
PRIMITIVE = "PrimitiveNode"
# Nodes that store a value under a name, and nodes that read a value by its name. The name is the first field.
SETTERS = {"SetNode", "easy setNode"}
GETTERS = {"GetNode", "easy getNode"}
# Decoration, or switches for other nodes whose resulting state is in the file.
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

# Use Everywhere nodes, which send a value to other nodes without a link.
PROMPTS_BROADCAST = "Prompts Everywhere"
BROADCASTS = ("Anything Everywhere", PROMPTS_BROADCAST)
# Sends its own value, and runs as a node.
SEED_BROADCAST = "Seed Everywhere"
