// The records of the API by their plain names.

import type { Whole } from "./json";
import type { components } from "./schema";

type Schemas = components["schemas"];

/** The schemas write seeds as numbers; here they may be `bigint`. */
export type Job = Omit<Schemas["Job"], "seed"> & { seed: Whole | null };
export type JobStatus = Schemas["JobStatus"];
export type Output = Schemas["Output"];
export type Batch = Schemas["Batch"];
export type Waiting = Schemas["JobWaiting"];
export type Effect = Schemas["Effect"];
export type PublicEffect = Schemas["PublicEffect"];
export type Studio = Schemas["Studio"];
export type Workflow = Schemas["Workflow"];
export type Property = Schemas["OwnWorkflowProperty"];
export type Preset = Schemas["Preset"];
export type File = Schemas["File"];
export type Me = Schemas["Me"];
export type Desk = Schemas["DeskInfo"];
export type QueueEntry = Schemas["QueueEntry"];
export type QueueItem = Schemas["QueueItem"];
export type Slot = Schemas["WorkerSlot"];
export type AboutJob = Schemas["AboutJob"];
export type Attempt = Schemas["JobAttempt"];
export type InputValue = Schemas["InputValue"];
export type RunFile = Schemas["RunFile"];
export type BulkDone = Schemas["BulkResult"];
export type Now = Schemas["DeskStatus"];
export type SavedView = Schemas["SavedView"];

export interface Page<T> {
  items: T[];
  next_cursor?: string | null;
}
