// The parts that all areas are made of; the page `/kit` shows them in every state. `Combobox`, `Table`, `Player` and the
// virtual lists are imported by their own files, so that they come with the areas that use them.

export { Button, type ButtonLook, buttonClass, IconButton } from "./Button";
export { classes } from "./classes";
export { Dialog, Drawer } from "./Dialog";
export {
  Checkbox,
  type Choice,
  Field,
  NumberField,
  Select,
  Stepped,
  TextArea,
  TextField,
} from "./fields";
export { Kbd } from "./Kbd";
export { Menu, type MenuItem, type MenuItems, RightClickMenu } from "./Menu";
export { Popover, PopoverClose } from "./Popover";
export { Switch } from "./Switch";
export {
  Card,
  Chip,
  EmptyState,
  ErrorCard,
  FilterChip,
  Heading,
  Progress,
  Skeleton,
  StatusBadge,
  StatusDot,
} from "./small";
export { type ToastGiven, Toasts, toast, toastProblem } from "./Toast";
export { Tooltip, TooltipProvider } from "./Tooltip";
