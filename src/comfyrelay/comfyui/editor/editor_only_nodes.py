"""Nodes that live in the editor alone: no server knows them."""

# They pass on what they are given.
REROUTES = {"Reroute", "Reroute (rgthree)"}
# Their value is that of every field that is linked to them.
PRIMITIVE = "PrimitiveNode"
# A value is kept under a name, and taken elsewhere by that name. The name is their first field.
SETTERS = {"SetNode", "easy setNode"}
GETTERS = {"GetNode", "easy getNode"}
# They are for the eye, or switch other nodes on and off; what they switched is in the file.
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

# They give other nodes their inputs without a link, which only the editor can find out.
BROADCASTS = ("Anything Everywhere", "Seed Everywhere", "Prompts Everywhere")
