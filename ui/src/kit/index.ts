// Components that most areas use; the page `/kit` shows all of them. Import the others, such as `Table`, `Player` and the
// virtual lists, from their own files: they are loaded only with the areas that need them.

export { Button, type ButtonLook, buttonClass, IconButton } from "./Button";
export { Card } from "./Card";
export { Checkbox } from "./Checkbox";
export { Chip, FilterChip } from "./Chip";
export { classes } from "./classes";
export { Dialog, Drawer } from "./Dialog";
export { EmptyState } from "./EmptyState";
export { ErrorCard } from "./ErrorCard";
export { Field, TextArea, TextField } from "./Field";
export { Heading } from "./Heading";
export { Kbd } from "./Kbd";
export { Menu, type MenuItem, type MenuItems, RightClickMenu } from "./Menu";
export { NumberField, Stepped } from "./NumberField";
export { Popover, PopoverClose } from "./Popover";
export { Progress } from "./Progress";
export { type Choice, Select } from "./Select";
export { Skeleton } from "./Skeleton";
export { StatusBadge, StatusDot } from "./Status";
export { Switch } from "./Switch";
export { type ToastOptions, Toasts, toast, toastProblem } from "./Toast";
export { Tooltip, TooltipProvider } from "./Tooltip";
