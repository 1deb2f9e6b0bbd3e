export interface GraphNode {
  class_type: string;
  inputs: Readonly<Record<string, unknown>>;
  _meta?: { title?: string };
}

export type Graph = Readonly<Record<string, GraphNode>>;

/** Title, else class. */
export const nodeName = (node: GraphNode): string => node._meta?.title?.trim() || node.class_type;

/** Candidates for the output node, last nodes first. */
export function outputNodes(graph: Graph): { id: string; name: string }[] {
  const feeds = new Set(
    Object.values(graph).flatMap((node) =>
      Object.values(node.inputs).flatMap((value) => (Array.isArray(value) ? [String(value[0])] : [])),
    ),
  );
  const isLast = (id: string) => !feeds.has(id);
  return Object.entries(graph)
    .sort(([a], [b]) => Number(isLast(b)) - Number(isLast(a)))
    .map(([id, node]) => ({ id, name: `${nodeName(node)} (${id})` }));
}
