export const isOver = (status: string): boolean => ["completed", "failed", "canceled"].includes(status);
