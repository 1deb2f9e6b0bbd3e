// Sign-in, sign-up, password reset and session renewal.

export const entry = {
  tagline: "Images and videos from your own GPUs.",
  email: "Email",
  password: "Password",
  newPassword: "New password",
  name: "Name",
  nameHint: "Shown to your team.",
  passwordHint: "At least 8 characters.",
  isShort: "Use at least 8 characters.",
  show: "Show password",
  hide: "Hide password",
  signIn: {
    title: "Sign in",
    action: "Sign in",
    toSignUp: "New here?",
    toSignUpAction: "Create an account",
    forgotten: "Forgot your password? Ask your administrator for a link to set a new one.",
    wrong: "Wrong email or password.",
  },
  signUp: {
    title: "Create an account",
    action: "Sign up",
    toSignIn: "Have an account?",
    closed: "Sign-up is closed",
    closedAdvice: "Ask your administrator for an account. You will get a link to set your password.",
  },
  again: {
    title: "Your session expired",
    about: "Sign in again to continue. Your input is still here.",
    other: "Sign in as another user",
  },
  reset: {
    title: "Choose your password",
    action: "Set password and sign in",
    about: "This signs out all other sessions and ends all API tokens. Your webhook is kept: check it afterwards.",
    gone: "This link does not work",
    goneAdvice: "The link was already used or has expired. Ask your administrator for a new one.",
    toSignIn: "Go to sign in",
  },
  account: "Account",
  signOut: "Sign out",
};
