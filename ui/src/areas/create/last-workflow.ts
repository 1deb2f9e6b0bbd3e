/** Local storage key: the workflow that was open last. */
export const LAST_WORKFLOW = "create.last";
