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

# Give inputs to other nodes without a link, which only the editor can resolve.
BROADCASTS = ("Anything Everywhere", "Seed Everywhere", "Prompts Everywhere")
